//! Tables: what `kubectl get` prints.
use jiff::Timestamp;
use runnel_hub_core::now::age;
use serde_json::{Value, json};

use super::delivery::{Row, state_name};
use super::request::IncludeObject;

/// A column: its name, type, priority (0: always, 1: wide) and description.
type Column = (&'static str, &'static str, u8, &'static str);

const COLUMNS: [Column; 13] = [
    ("Rule", "string", 0, "The rule."),
    ("Cluster", "string", 0, "The member cluster."),
    (
        "State",
        "string",
        0,
        "The state of the rule in the cluster.",
    ),
    (
        "Applied",
        "string",
        0,
        "Copies that equal their source, of all that should exist.",
    ),
    ("Failed", "integer", 0, "Copies whose last attempt failed."),
    (
        "Waiting",
        "integer",
        0,
        "Copies for namespaces that do not exist yet.",
    ),
    ("Reason", "string", 0, "The worst reason among the copies."),
    ("Age", "string", 0, "The age of the rule."),
    ("Name", "string", 1, "The name of the delivery."),
    (
        "Drifted",
        "integer",
        1,
        "Copies that were changed in the cluster, and are left so.",
    ),
    (
        "Newest",
        "boolean",
        1,
        "Whether the cluster has the newest revisions.",
    ),
    (
        "Proof",
        "string",
        1,
        "Whether the agent has proved its copies.",
    ),
    ("Message", "string", 1, "A sentence for a person."),
];

/// Returns a table with these rows.
pub(super) fn table(
    rows: &[Row],
    metadata: &Value,
    include: IncludeObject,
    now: Timestamp,
) -> Value {
    let columns: Vec<_> = COLUMNS
        .iter()
        .map(|(name, kind, priority, description)| {
            json!({
                "name": name,
                "type": kind,
                "format": if *name == "Name" { "name" } else { "" },
                "description": description,
                "priority": priority,
            })
        })
        .collect();
    let rows: Vec<_> = rows
        .iter()
        .map(|row| table_row(row, include, now))
        .collect();
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": columns,
        "rows": rows,
    })
}

fn table_row(row: &Row, include: IncludeObject, now: Timestamp) -> Value {
    let status = &row.status;
    let created = row.metadata.creation_timestamp.as_ref();
    let age = age(created.map(|created| created.0), now);
    let object = match include {
        IncludeObject::None => None,
        IncludeObject::Metadata => Some(partial(row)),
        IncludeObject::Object => Some(row.object()),
    };
    let mut made = json!({
        "cells": [
            row.rule.name,
            row.cluster.as_str(),
            state_name(status.state),
            format!("{}/{}", status.applied, status.copies),
            status.failed,
            status.waiting,
            status.reason,
            age,
            row.metadata.name,
            status.drifted,
            status.newest,
            status.proof,
            status.message,
        ],
    });
    if let Some(object) = object {
        made["object"] = object;
    }
    made
}

/// Returns the metadata of a delivery as an object.
pub(super) fn partial(row: &Row) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": row.metadata,
    })
}
