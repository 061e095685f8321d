//! What is selected and not sent, as a person reads it.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::{self, ClusterName, SourceRef};

use super::View;
use crate::plan::{RenderError, RenderErrorKind, RulePlan};
use runnel_api::conditions::Reason;

/// The word for it.
fn reason(why: RenderErrorKind) -> Reason {
    match why {
        RenderErrorKind::Ambiguous => Reason::Copy(model::Reason::AmbiguousSource),
        RenderErrorKind::Name => Reason::InvalidName,
        RenderErrorKind::Transform => Reason::TransformFailed,
        RenderErrorKind::Variable => Reason::VariableMissing,
        RenderErrorKind::Value => Reason::ValueMissing,
        RenderErrorKind::Object => Reason::InvalidCopy,
        RenderErrorKind::Budget => Reason::RenderBudgetExceeded,
    }
}

/// What is withheld of what is sent to a cluster: the first of it.
pub(super) fn from_cluster(sent: &RulePlan) -> Option<(Reason, String)> {
    let render_errors = &sent.render_errors;
    let (_, first) = render_errors.first_key_value()?;
    let more = match render_errors.len() {
        1 => String::new(),
        all => format!(" (and {} more of the sources)", all - 1),
    };
    Some((reason(first.why), format!("{}{more}", first.message)))
}

/// What is withheld anywhere: the first of it, and how much it is.
pub(super) fn from_any(view: &View<'_>) -> Option<(Reason, String)> {
    let mut first: Option<(&ClusterName, &RenderError)> = None;
    let mut clusters = 0;
    let mut sources: BTreeSet<&SourceRef> = BTreeSet::new();
    // Clusters with the same content share it: each plan is checked once.
    let mut seen: BTreeMap<*const RulePlan, bool> = BTreeMap::new();
    for cluster in view.target_clusters.clusters.keys() {
        let sent = view.sent(cluster);
        let lacks = *seen.entry(std::ptr::from_ref(sent)).or_insert_with(|| {
            sources.extend(sent.render_errors.keys());
            !sent.render_errors.is_empty()
        });
        clusters += usize::from(lacks);
        first = first.or_else(|| Some((cluster, sent.render_errors.first_key_value()?.1)));
    }
    let (cluster, render_errors) = first?;
    let place = match clusters {
        all if all == view.target_clusters.clusters.len()
            && !view.cluster_plans.differs_by_cluster() =>
        {
            String::new()
        }
        1 => format!(" to {cluster}"),
        all => format!(" to {all} clusters, among them {cluster}"),
    };
    let (what, of) = match sources.len() {
        1 => ("1 source is".to_owned(), "it"),
        more => (format!("{more} sources are"), "them"),
    };
    let message = format!(
        "{what} not sent{place}, and existing copies of {of} are left unchanged: {}",
        render_errors.message
    );
    Some((reason(render_errors.why), message))
}
