//! Checks the rights for plans, and returns the rule of a plan.
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::UserInfo;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use runnel_proto::model::{FieldsKey, RuleName, RuleUid, is_label, is_privileged, is_subdomain};
use serde_json::Value;
use serde_json::value::RawValue;

use super::{PlanRequest, RULE_KINDS, random_key, resource_of};
use crate::view::ViewServer;
use crate::view::error::ViewError;
use crate::view::head::Head;
use crate::view::review::{ResourceAccess, name_of};
use runnel_hub_core::plan::Rule;

impl ViewServer {
    /// Checks the rights on a saved rule: `get`, besides the `create` that each plan needs. A dry run also needs `update`, because its content
    /// is sent and requests are made in its name. A planned deletion also needs `delete`.
    pub(super) async fn saved(
        &self,
        user: &UserInfo,
        asked: &PlanRequest<'_>,
    ) -> Result<Rule, ViewError> {
        let name = &asked.name;
        self.may(user, "get", name).await?;
        if asked.options.dry_run {
            self.may(user, "update", name).await?;
        }
        if asked.options.delete {
            self.may(user, "delete", name).await?;
        }
        let index = self.hub_state.index.read();
        let found = index
            .rules()
            .iter()
            .find(|(_, entry)| entry.rule.terms.rule == *name);
        found
            .map(|(_, entry)| entry.rule.clone())
            .ok_or_else(|| ViewError::Missing("the hub has no such rule".to_owned()))
    }

    /// Checks the rights on an unsaved rule: those to save it. Each plan needs `create`, the edit of a saved rule also
    /// `update`.
    pub(super) async fn unsaved(
        &self,
        user: &UserInfo,
        name: &RuleName,
        object: &RawValue,
    ) -> Result<Rule, ViewError> {
        let malformed = |why: &dyn std::fmt::Display| {
            ViewError::BadRequest(format!("the rule cannot be read: {why}"))
        };
        if !Head::read(object)?.api_version.starts_with("runnel.dev/") {
            return Err(malformed(
                &"kind: it is no DistributionRule or ClusterDistributionRule of runnel.dev",
            ));
        }
        let is_whole = name.kind == RULE_KINDS[1].0;
        // The API server has not validated it, and parts of it are sent to agents.
        check_identity(name).map_err(|why| malformed(&why))?;
        let known = {
            let index = self.hub_state.index.read();
            let found = index
                .rules()
                .iter()
                .find(|(_, entry)| entry.rule.terms.rule == *name);
            found.map(|(uid, entry)| (uid.clone(), entry.rule.terms.created_at))
        };
        if known.is_some() {
            self.may(user, "update", name).await?;
        }
        let value: Value = serde_json::from_str(object.get()).map_err(|error| malformed(&error))?;
        runnel_api::check_spec(&name.kind, &value["spec"]).map_err(|why| malformed(&why))?;
        let namespace = &self.hub_state.settings.namespace;
        let rule = if is_whole {
            let rule: runnel_api::ClusterDistributionRule =
                serde_json::from_value(value).map_err(|error| malformed(&error))?;
            Rule::cluster_scoped(&identified(rule, known)?, namespace)
        } else {
            let rule: runnel_api::DistributionRule =
                serde_json::from_value(value).map_err(|error| malformed(&error))?;
            Rule::namespaced(&identified(rule, known)?, namespace)
        };
        let rule = rule.ok_or_else(|| malformed(&"metadata: it has no namespace"))?;
        self.may_make_copies(user, &rule).await?;
        Ok(rule)
    }

    /// Checks that the user may `create` the privileged kinds of which the copies of a rule of a namespace are other objects than
    /// the sources. Without this right the user may not save the rule either.
    async fn may_make_copies(&self, user: &UserInfo, rule: &Rule) -> Result<(), ViewError> {
        let namespace = &*rule.terms.rule.namespace;
        if namespace.is_empty() || !rule.shape.makes_other_objects() {
            return Ok(());
        }
        let selected = rule.resources();
        let mut made: BTreeSet<&str> = selected.filter(|kind| is_privileged(kind)).collect();
        if rule.resources().any(|kind| kind == runnel_api::BUNDLE_KIND) {
            // A bundle may have manifests of any kind: these stand for those that run programs and those that carry rights.
            made.extend(["pods", "roles.rbac.authorization.k8s.io"]);
        }
        for kind in made {
            let access = ResourceAccess::to_kind("create", kind, namespace);
            if !self.content_reviewer.allows(user, &access).await? {
                return Err(ViewError::Forbidden(format!(
                    "overrides, removeFields, transform.name and substitute.fields make other objects of {kind}, which {} may \
                     not create in namespace {namespace}: have that right given, or leave {kind} out",
                    name_of(user)
                )));
            }
        }
        Ok(())
    }

    /// Checks one right on a rule.
    pub(in crate::view) async fn may(
        &self,
        user: &UserInfo,
        verb: &str,
        rule: &RuleName,
    ) -> Result<(), ViewError> {
        let place = (rule.namespace.as_str(), rule.name.as_str());
        self.may_change(user, verb, resource_of(rule)?, place).await
    }

    /// Checks one right on an object of Runnel. Who creates one names no object.
    pub(super) async fn may_change(
        &self,
        user: &UserInfo,
        verb: &str,
        resource: &str,
        (namespace, name): (&str, &str),
    ) -> Result<(), ViewError> {
        let name = if verb == "create" { "" } else { name };
        let access = ResourceAccess::to_runnel(verb, resource, namespace, name);
        if self.content_reviewer.allows(user, &access).await? {
            return Ok(());
        }
        let place = if namespace.is_empty() {
            String::new()
        } else {
            format!(" in namespace {namespace}")
        };
        Err(ViewError::Forbidden(format!(
            "{} may not {verb} {resource}.runnel.dev{place}",
            name_of(user)
        )))
    }

    /// Checks that the user may `get` each selected kind. Otherwise the plan would disclose its
    /// objects. Without this right the user may not save a rule that selects the kind either.
    pub(in crate::view) async fn may_read_sources(
        &self,
        user: &UserInfo,
        rule: &Rule,
    ) -> Result<(), ViewError> {
        let mut wanted: BTreeSet<(&str, &str)> = BTreeSet::new();
        for entry in &rule.sources {
            for kind in &entry.resources {
                let everywhere = entry
                    .namespaces
                    .iter()
                    .any(|namespace| !namespace.is_literal());
                let names = entry.namespaces.iter().map(|name| name.as_str());
                if everywhere || entry.is_of_cluster() {
                    wanted.insert((kind, ""));
                } else {
                    wanted.extend(names.map(|name| (&**kind, name)));
                }
            }
        }
        let mut everywhere: BTreeMap<&str, bool> = BTreeMap::new();
        for (kind, namespace) in wanted {
            let access = |namespace| ResourceAccess::to_kind("get", kind, namespace);
            let whole = match everywhere.get(kind) {
                Some(known) => *known,
                None if rule.terms.rule.is_cluster_scoped() => {
                    let may = self.content_reviewer.allows(user, &access("")).await?;
                    everywhere.insert(kind, may);
                    may
                }
                None => false,
            };
            if whole
                || (!namespace.is_empty()
                    && self
                        .content_reviewer
                        .allows(user, &access(namespace))
                        .await?)
            {
                continue;
            }
            let place = if namespace.is_empty() {
                "in the whole cluster".to_owned()
            } else {
                format!("in namespace {namespace}")
            };
            return Err(ViewError::Forbidden(format!(
                "spec.sources selects {kind}, which {} may not get {place}: have that right given, or leave {kind} \
                 out",
                name_of(user)
            )));
        }
        Ok(())
    }
}

/// A name or namespace that no rule can have.
#[derive(Debug, thiserror::Error)]
enum IdentityError {
    #[error(
        "metadata.name: write a name of lowercase letters, digits, '-' and '.', up to 253 characters"
    )]
    Name,
    #[error("metadata.namespace: a ClusterDistributionRule has none: remove it")]
    UnexpectedNamespace,
    #[error("metadata.namespace: write the name of a namespace")]
    Namespace,
}

/// Checks that a name and namespace are valid for the kind of the rule.
fn check_identity(rule: &RuleName) -> Result<(), IdentityError> {
    let is_whole = rule.kind == RULE_KINDS[1].0;
    match (is_subdomain(&rule.name), rule.namespace.as_str()) {
        (false, _) => Err(IdentityError::Name),
        (true, "") if is_whole => Ok(()),
        (true, _) if is_whole => Err(IdentityError::UnexpectedNamespace),
        (true, namespace) if is_label(namespace) => Ok(()),
        (true, _) => Err(IdentityError::Namespace),
    }
}

/// Returns the rule as if the API server had saved it: with the identity of the rule that it edits,
/// or with an unused one.
fn identified<K: ResourceExt>(mut rule: K, known: Option<(RuleUid, i64)>) -> Result<K, ViewError> {
    let FieldsKey(random) = random_key()?;
    let (uid, created) = known.unwrap_or_else(|| {
        let uid = format!("plan-{}", data_encoding::HEXLOWER.encode(&random[..16]));
        (RuleUid::from(uid.as_str()), Timestamp::now().as_second())
    });
    let meta = rule.meta_mut();
    meta.uid = Some(uid.as_str().to_owned());
    meta.creation_timestamp = Timestamp::from_second(created).ok().map(Time);
    meta.deletion_timestamp = None;
    Ok(rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_names_follow_the_api_server() {
        let called = |kind: &str, namespace: &str, name: &str| {
            check_identity(&RuleName {
                kind: kind.into(),
                namespace: namespace.into(),
                name: name.into(),
            })
            .is_ok()
        };
        let long = "x".repeat(254);
        assert!(called(RULE_KINDS[0].0, "team", "a.b") && called(RULE_KINDS[1].0, "", "a"));
        for name in ["", "A", "a..b", "-a", "a/b", &long] {
            assert!(
                !called(RULE_KINDS[0].0, "team", name) && !called(RULE_KINDS[1].0, "", name),
                "{name}"
            );
        }
        for namespace in ["", "A", "a.b", &"x".repeat(64)] {
            assert!(!called(RULE_KINDS[0].0, namespace, "a"), "{namespace}");
        }
        assert!(!called(RULE_KINDS[1].0, "team", "a"));
    }
}
