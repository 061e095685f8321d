//! Reads members from the API server, and writes their records.
//!
//! # Two objects
//! Who may join, renew or connect follows from a `MemberCluster` (accepted, uid, allowed join) and from its record (keys, used
//! tokens). A write of the record expects the version that was read, and the record is read *before* the `MemberCluster`. So
//! the record was this one when the `MemberCluster` was read, and every decision is one of that moment: no key or token that
//! was written since is lost, and an earlier join string redeems nothing after a later one. A revocation after that moment
//! comes after the decision, and ends the sessions of every key on record. A `MemberCluster` that is deleted and created again
//! has another uid than the record names.
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Status;
use kube::{Api, Client, Resource, ResourceExt};
use runnel_proto::model::ClusterName;
use serde_json::json;

use crate::call::FIELD_MANAGER;
use crate::membership::Member;
use crate::object_cache::ObjectCache;
use runnel_api::{MemberCluster, MemberRecord, MemberRecordSpec};

/// Reads a member. `None`, if its `MemberCluster` does not exist.
///
/// # Errors
/// As the API server's; and 503 while the record that the watch has seen is not served, such as while its CRD is deleted: such a
/// member has keys and used tokens, which are unknown.
pub async fn read_member(
    client: &Client,
    object_cache: &ObjectCache,
    name: &str,
) -> kube::Result<Option<Member>> {
    let records: Api<MemberRecord> = Api::all(client.clone());
    let clusters: Api<MemberCluster> = Api::all(client.clone());
    let record = records.get_opt(name).await?;
    let Some(cluster) = clusters.get_opt(name).await? else {
        return Ok(None);
    };
    let read = Member::new(cluster.into(), record.map(Into::into));
    let known = object_cache.member(&ClusterName::from(name));
    let is_known = known.is_some_and(|known| {
        known.stored().is_some() && known.cluster.metadata.uid == read.cluster.metadata.uid
    });
    if read.stored().is_none() && is_known {
        return Err(error(503, "the MemberRecord is not served now"));
    }
    Ok(Some(read))
}

/// Writes the record of a member, if it is the one of `member`.
///
/// # Errors
/// As the API server's; 409 if the record is another one by now: read the member again.
pub async fn write_record(
    client: &Client,
    member: &Member,
    next: MemberRecordSpec,
) -> kube::Result<MemberRecord> {
    let records: Api<MemberRecord> = Api::all(client.clone());
    let name = member.cluster.name_any();
    let written = if let Some(stored) = member.stored() {
        // Every field is named, as an absent one would stay.
        let spec = json!({
            "identity": {"keys": next.identity.keys, "retired": next.identity.retired},
            "tokens": next.tokens,
            "pendingRemovals": next.pending_removals,
        });
        let (version, uid) = (&stored.metadata.resource_version, &stored.metadata.uid);
        let metadata = json!({"resourceVersion": version, "uid": uid});
        let patch = Patch::Merge(json!({"metadata": metadata, "spec": spec}));
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        records.patch(&name, &params, &patch).await
    } else {
        let next = MemberRecordSpec {
            member_uid: member.cluster.uid().unwrap_or_default(),
            ..next
        };
        let mut record = MemberRecord::new(&name, next);
        record.metadata.owner_references = member.cluster.owner_ref(&()).map(|owner| vec![owner]);
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let created = records.create(&params, &record).await;
        if matches!(&created, Err(kube::Error::Api(status)) if status.code == 409) {
            delete_former(client, &name).await?;
        }
        created
    };
    // The member may exist without this record.
    written.map_err(|why| match why {
        kube::Error::Api(status) if status.code == 404 => error(409, "the MemberRecord is absent"),
        why => why,
    })
}

/// Deletes the record of a `MemberCluster` that had this name before, if the garbage collector has not done so yet.
async fn delete_former(client: &Client, name: &str) -> kube::Result<()> {
    let records: Api<MemberRecord> = Api::all(client.clone());
    let clusters: Api<MemberCluster> = Api::all(client.clone());
    let read = (records.get_opt(name).await?, clusters.get_opt(name).await?);
    let (Some(record), Some(cluster)) = read else {
        return Ok(());
    };
    if cluster.metadata.uid.as_ref() == Some(&record.spec.member_uid) {
        return Ok(());
    }
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: record.metadata.uid,
            resource_version: record.metadata.resource_version,
        }),
        ..DeleteParams::default()
    };
    records.delete(name, &params).await.map(drop)
}

fn error(code: u16, message: &str) -> kube::Error {
    kube::Error::Api(Box::new(Status {
        code,
        message: message.to_owned(),
        ..Status::default()
    }))
}

#[cfg(test)]
mod tests;
