//! The messages about a removal that waits for approval.
use super::fold::counted;
use crate::plan::Rule;
use runnel_api::{APPROVE, PendingApproval};

/// How many copies, where, why, and how to approve that.
pub(super) fn describe_pending(rule: &Rule, pending: &PendingApproval) -> String {
    let (what, it) = if pending.copies == 1 {
        ("this one", "it")
    } else {
        ("these", "them")
    };
    let copies = counted(pending.copies, "copy", "copies");
    let clusters = counted(pending.clusters, "cluster", "clusters");
    let names = match pending.names.as_slice() {
        [] => String::new(),
        names => format!(" ({})", names.join(", ")),
    };
    let undo = if rule.deleting {
        format!("the rule stays until then; to keep {it}, set deletionPolicy to Retain")
    } else {
        format!("to keep {it}, undo the change")
    };
    format!(
        "the removal of {copies} in {clusters} needs approval: {}{names}. To remove exactly {what}: {}; {undo}",
        pending.cause,
        approve(rule, &pending.digest),
    )
}

/// The command that approves it.
fn approve(rule: &Rule, digest: &str) -> String {
    let name = &rule.terms.rule;
    let (kind, namespace) = if name.is_cluster_scoped() {
        ("cdrule", String::new())
    } else {
        ("drule", format!(" -n {}", name.namespace))
    };
    format!(
        "kubectl annotate {kind} {}{namespace} --overwrite {APPROVE}={digest}",
        name.name
    )
}
