//! Lists the removals of a rule that wait for approval.
use k8s_openapi::api::authentication::v1::UserInfo;
use runnel_api::{BlockedRemoval, RemovalReviewStatus};
use runnel_hub_core::guard::Item;
use runnel_hub_core::status::ReportStore;
use runnel_proto::model::{RuleName, RuleUid};

use super::ViewServer;
use super::error::ViewError;

/// The limit of removals in one answer.
const PAGE: usize = 500;

impl ViewServer {
    /// Returns one page of the blocked removals of a rule, to a user who may `get` the rule.
    ///
    /// # Errors
    /// [`ViewError::Forbidden`] or [`ViewError::Missing`].
    pub(super) async fn removals_for(
        &self,
        user: &UserInfo,
        rule: &RuleName,
        skip: usize,
    ) -> Result<RemovalReviewStatus, ViewError> {
        self.reader().serving_since()?;
        self.may(user, "get", rule).await?;
        self.removals(rule, skip)
            .ok_or_else(|| ViewError::Missing("the hub has no such rule".to_owned()))
    }

    /// Reads digest, count and items under one lock, so that they are of one set.
    fn removals(&self, rule: &RuleName, skip: usize) -> Option<RemovalReviewStatus> {
        let index = self.hub_state.index.read();
        let (uid, entry) = index
            .rules()
            .iter()
            .find(|(_, entry)| entry.rule.terms.rule == *rule)?;
        let report_store = self.hub_state.report_store.lock();
        let Some(pending) = entry.guard.pending() else {
            return Some(RemovalReviewStatus::default());
        };
        let blocked = entry.guard.blocked();
        let removal = |item: &Item| blocked_removal(uid, item, &report_store);
        let page = page(blocked.iter(), skip, removal);
        Some(RemovalReviewStatus {
            digest: pending.digest.clone(),
            copies: pending.copies,
            remaining: remaining(blocked.len(), skip, page.len()),
            removals: page,
        })
    }
}

/// Returns the items after the first `skip` ones, as many as fit into one answer.
fn page<I, T>(items: impl Iterator<Item = I>, skip: usize, read: impl Fn(I) -> T) -> Vec<T> {
    items.skip(skip).take(PAGE).map(read).collect()
}

fn remaining(all: usize, skip: usize, shown: usize) -> i64 {
    let rest = all.saturating_sub(skip).saturating_sub(shown);
    i64::try_from(rest).unwrap_or(i64::MAX)
}

fn blocked_removal(uid: &RuleUid, item: &Item, report_store: &ReportStore) -> BlockedRemoval {
    let (scope, object) = match item {
        Item::Rule => ("Rule", String::new()),
        Item::Cluster(_) => ("Cluster", String::new()),
        Item::Kind(_, kind) => ("Kind", kind.to_string()),
        Item::Copy(_, intent) => ("Copy", intent.to_string()),
        Item::Name(intent) => ("Name", intent.to_string()),
        Item::Source(source) => ("Source", source.to_string()),
        Item::Prune(..) => ("Prune", String::new()),
    };
    let mut removal = BlockedRemoval {
        scope: scope.to_owned(),
        cluster: item
            .cluster()
            .map(|cluster| cluster.as_str().to_owned())
            .unwrap_or_default(),
        object,
        ..BlockedRemoval::default()
    };
    if let Item::Prune(cluster, _) = item {
        let reported = report_store.reported_copies(uid, cluster);
        let prunes = reported.and_then(|reported| reported.prunes);
        removal.copies = Some(prunes.map_or(0, |asked| asked.objects.into()));
        removal.namespaces = report_store.namespaces_of_prunes(uid, cluster).to_vec();
    }
    removal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_removals_are_bounded_and_complete() {
        let all = 2 * PAGE + 1;
        let (mut seen, mut sizes) = (Vec::new(), Vec::new());
        loop {
            let shown = page(0..all, seen.len(), |item| item);
            let rest = remaining(all, seen.len(), shown.len());
            sizes.push((shown.len(), rest));
            seen.extend(shown);
            if rest == 0 {
                break;
            }
        }
        assert_eq!(sizes, [(PAGE, 501), (PAGE, 1), (1, 0)]);
        assert!(seen.into_iter().eq(0..all));
        assert_eq!(remaining(3, usize::MAX, 0), 0);
    }
}
