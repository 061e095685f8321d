//! `kubectl runnel approve`: approves pending removals, or the next wave of a rollout, exactly as listed.
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use runnel_api::{
    BlockedRemoval, Fleet, PendingApproval, PendingWave, RemovalReview, RemovalReviewSpec,
    RemovalReviewStatus, RolloutPhase, RolloutStatus,
};
use serde_json::json;

use super::access::Cluster;
use super::args::Approve;
use super::confirm::confirm;
use super::objects::Rule;
use super::parse;
use super::read_cluster::{FLEET_PATH, rule_path};
use super::{CommandContext, FAILED, TIMED_OUT, ended, note, plan, print, status, usage, views};
use runnel_api::APPROVE;

const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// The hub needs this long to take the annotation in.
const SETTLES_WITHIN: Duration = Duration::from_secs(3);

/// What waits for approval, for output.
struct Pending {
    digests: Vec<String>,
    kind: PendingKind,
    of: String,
    path: String,
}

/// What an approval causes.
enum PendingKind {
    /// The removal of so many copies.
    Removal(i64),
    /// The begin of a wave.
    Wave(PendingWave),
}

impl Pending {
    fn question(&self) -> String {
        match &self.kind {
            PendingKind::Removal(copies) => {
                format!("Remove these {} of {}?", copies_text(*copies), self.of)
            }
            PendingKind::Wave(pending) => {
                format!("Begin wave {} of {}?", pending.wave, self.of)
            }
        }
    }

    fn result(&self) -> String {
        match &self.kind {
            PendingKind::Removal(copies) => {
                format!("Approved: {} are being removed.\n", copies_text(*copies))
            }
            PendingKind::Wave(pending) => {
                format!("Approved: wave {} begins.\n", pending.wave)
            }
        }
    }

    fn later(&self) -> String {
        match &self.kind {
            PendingKind::Removal(_) => self.result(),
            PendingKind::Wave(pending) => {
                format!(
                    "Approved: wave {} begins when a window opens.\n",
                    pending.wave
                )
            }
        }
    }
}

fn copies_text(copies: i64) -> String {
    if copies == 1 {
        "1 copy".to_owned()
    } else {
        format!("{copies} copies")
    }
}

/// Lists what waits for approval in one rule or in the fleet, and approves it.
pub(super) async fn run(session: &CommandContext<'_>, options: &Approve) -> anyhow::Result<()> {
    let timeout = parse::duration("--timeout", &options.timeout).map_err(usage)?;
    let hub = session.hub().await?;
    let namespace = session.rule_namespace(&hub)?;
    let pending = match &options.rule {
        Some(rule) => of_rule(&hub, rule, &namespace).await?,
        None => of_fleet(&hub).await?,
    };
    confirm(&pending.question(), options.yes)?;
    let patch = json!({"metadata": {"annotations": {APPROVE: pending.digests.join(",")}}});
    hub.patch("approve what waits", &pending.path, patch)
        .await?;
    match outcome(&hub, &pending, timeout).await? {
        Outcome::All => print(&pending.result()),
        Outcome::Later => print(&pending.later()),
        Outcome::Other => {
            let message =
                "what waits has changed and needs approval again: see `kubectl runnel approve`";
            Err(ended(FAILED, message))
        }
        Outcome::No => Err(ended(
            TIMED_OUT,
            format!(
                "the annotation {APPROVE} is written, and the hub has not acted on it within {}: `kubectl runnel doctor` \
                 shows whether the hub runs",
                parse::duration_text(timeout)
            ),
        )),
    }
}

async fn of_rule(hub: &Cluster, rule: &str, namespace: &str) -> anyhow::Result<Pending> {
    let rule = Rule::read(&status::one(hub, rule, namespace).await?)?;
    let name = rule.full_name();
    // Its approval is another change, which begins with the first wave.
    let removal = rule
        .status()
        .and_then(|status| status.pending_approval.as_ref());
    match (removal, pending_wave(&rule)) {
        (Some(pending), _) => removal_of_rule(hub, &rule, pending, namespace).await,
        (None, Some(pending)) => wave_of_rule(hub, &rule, pending).await,
        (None, None) => Err(ended(FAILED, format!("nothing of rule {name} waits"))),
    }
}

fn pending_wave(rule: &Rule) -> Option<&PendingWave> {
    rule.status()?.rollout.as_ref()?.pending_wave.as_ref()
}

/// Shows the clusters of the wave that waits, and what it changes there.
async fn wave_of_rule(
    hub: &Cluster,
    rule: &Rule,
    pending: &PendingWave,
) -> anyhow::Result<Pending> {
    print(&describe_wave(pending))?;
    match plan::of_clusters(hub, rule, &pending.names).await {
        Ok(text) => print(&format!("\n{text}\n"))?,
        Err(why) => note(&format!("warning: what changes cannot be listed: {why:#}")),
    }
    Ok(Pending {
        digests: vec![pending.digest.clone()],
        kind: PendingKind::Wave(pending.clone()),
        of: format!("rule {}", rule.full_name()),
        path: rule_path(rule),
    })
}

/// Names the clusters of a wave.
fn describe_wave(pending: &PendingWave) -> String {
    let clusters = match pending.clusters {
        1 => "1 cluster".to_owned(),
        more => format!("{more} clusters"),
    };
    let left = usize::try_from(pending.clusters)
        .unwrap_or_default()
        .saturating_sub(pending.names.len());
    let more = match left {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "wave {} waits for approval: {clusters} ({}{more})\n",
        pending.wave,
        pending.names.join(", ")
    )
}

async fn removal_of_rule(
    hub: &Cluster,
    rule: &Rule,
    pending: &PendingApproval,
    namespace: &str,
) -> anyhow::Result<Pending> {
    let name = rule.full_name();
    print(&format!("{}\n", describe(pending, 0)))?;
    let (digest, copies) = match review(hub, rule, namespace).await {
        // The digest belongs to the listed removals.
        Ok(review) if review.digest.is_empty() => {
            return Err(ended(
                FAILED,
                format!("nothing of rule {name} waits any more"),
            ));
        }
        Ok(review) => {
            print(&table(&review))?;
            (review.digest, review.copies)
        }
        // The digest belongs to the counts and names of the status, which are shown above.
        Err(why) => {
            note(&format!("warning: not all of it can be listed: {why:#}"));
            (pending.digest.clone(), pending.copies)
        }
    };
    Ok(Pending {
        digests: vec![digest],
        kind: PendingKind::Removal(copies),
        of: format!("rule {name}"),
        path: rule_path(rule),
    })
}

/// Asks the hub for the first page of the blocked removals of a rule.
async fn review(
    hub: &Cluster,
    rule: &Rule,
    namespace: &str,
) -> anyhow::Result<RemovalReviewStatus> {
    let request = RemovalReview {
        metadata: ObjectMeta::default(),
        spec: RemovalReviewSpec {
            kind: rule.kind().to_owned(),
            name: rule.name().to_owned(),
            skip: 0,
        },
        status: None,
    };
    // A review of a ClusterDistributionRule may be created in any namespace.
    let namespace = match rule.namespace() {
        "" => namespace,
        own => own,
    };
    let place = (Some(namespace), "removalreviews");
    let answer = views::create(hub, "list what waits for approval", place, &request).await?;
    Ok(answer.status.unwrap_or_default())
}

async fn of_fleet(hub: &Cluster) -> anyhow::Result<Pending> {
    let fleet: Option<Fleet> = hub.get("read the Fleet", FLEET_PATH).await?;
    let fleet = fleet.ok_or_else(|| ended(FAILED, "there is no Fleet yet: does the hub run?"))?;
    let causes = fleet.status.unwrap_or_default().pending_approvals;
    if causes.is_empty() {
        return Err(ended(FAILED, "nothing waits for approval"));
    }
    for cause in &causes {
        print(&format!("{}\n", describe(&cause.approval, cause.rules)))?;
    }
    Ok(Pending {
        kind: PendingKind::Removal(causes.iter().map(|cause| cause.approval.copies).sum()),
        digests: causes
            .into_iter()
            .map(|cause| cause.approval.digest)
            .collect(),
        of: "the fleet".to_owned(),
        path: FLEET_PATH.to_owned(),
    })
}

/// Describes a pending removal in one line; `rules` is 0 for the removal of one rule.
fn describe(pending: &PendingApproval, rules: i64) -> String {
    let rules = match rules {
        0 => String::new(),
        1 => " of 1 rule".to_owned(),
        rules => format!(" of {rules} rules"),
    };
    format!(
        "{}: {} copies{rules} in {} clusters wait for approval ({})",
        pending.why(),
        pending.copies,
        pending.clusters,
        pending.names.join(", "),
    )
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// No removal is pending any more.
    All,
    /// Another set waits.
    Other,
    /// It is approved, and begins when a window opens.
    Later,
    /// It is still pending.
    No,
}

async fn outcome(hub: &Cluster, pending: &Pending, timeout: Duration) -> anyhow::Result<Outcome> {
    let begin = Instant::now();
    loop {
        match pending.outcome(hub).await? {
            known @ (Outcome::All | Outcome::Later) => return Ok(known),
            Outcome::Other if begin.elapsed() >= SETTLES_WITHIN => return Ok(Outcome::Other),
            other if begin.elapsed() >= timeout => return Ok(other),
            Outcome::Other | Outcome::No => tokio::time::sleep(POLL_INTERVAL).await,
        }
    }
}

impl Pending {
    /// Returns what has become of it.
    async fn outcome(&self, hub: &Cluster) -> anyhow::Result<Outcome> {
        let approved = match &self.kind {
            PendingKind::Removal(_) => {
                let waiting = self.removals(hub).await?;
                return Ok(approval_outcome(&waiting, &self.digests));
            }
            PendingKind::Wave(approved) => approved,
        };
        let rule: Option<Rule> = hub.get("read what waits", &self.path).await?;
        let rollout = rule
            .as_ref()
            .and_then(|rule| rule.status()?.rollout.as_ref());
        Ok(wave_outcome(rollout, approved))
    }

    /// Returns the digests of the pending removals.
    async fn removals(&self, hub: &Cluster) -> anyhow::Result<Vec<String>> {
        let action = "read what waits";
        if self.path == FLEET_PATH {
            let fleet: Option<Fleet> = hub.get(action, &self.path).await?;
            let status = fleet.and_then(|fleet| fleet.status).unwrap_or_default();
            let causes = status.pending_approvals.into_iter();
            return Ok(causes.map(|cause| cause.approval.digest).collect());
        }
        let rule: Option<Rule> = hub.get(action, &self.path).await?;
        let pending = rule
            .as_ref()
            .and_then(|rule| rule.status()?.pending_approval.as_ref());
        Ok(pending
            .map(|pending| pending.digest.clone())
            .into_iter()
            .collect())
    }
}

/// Compares the `approved` digests with the pending ones.
fn approval_outcome(waiting: &[String], approved: &[String]) -> Outcome {
    if waiting.is_empty() {
        Outcome::All
    } else if waiting.iter().any(|digest| approved.contains(digest)) {
        Outcome::No
    } else {
        Outcome::Other
    }
}

/// Returns what has become of an approved wave.
fn wave_outcome(rollout: Option<&RolloutStatus>, approved: &PendingWave) -> Outcome {
    let Some(rollout) = rollout else {
        return Outcome::Other;
    };
    let pending = rollout.pending_wave.as_ref();
    if pending.is_some_and(|pending| pending.digest == approved.digest) {
        match rollout.phase {
            RolloutPhase::AwaitingWindow => Outcome::Later,
            _ => Outcome::No,
        }
    } else if rollout.wave >= approved.wave || rollout.phase == RolloutPhase::Completed {
        Outcome::All
    } else {
        Outcome::Other
    }
}

/// Lists the blocked removals, one per line; those beyond the page are counted.
fn table(review: &RemovalReviewStatus) -> String {
    let mut lines: String = review.removals.iter().map(line).collect();
    if review.remaining > 0 {
        lines += &format!("  and {} more\n", review.remaining);
    }
    if lines.is_empty() {
        "The hub restarted, and not all agents have reported yet.\n".to_owned()
    } else {
        lines
    }
}

fn line(removal: &BlockedRemoval) -> String {
    let BlockedRemoval {
        scope,
        cluster,
        object,
        copies,
        namespaces,
    } = removal;
    match scope.as_str() {
        "Rule" => "  all copies: the rule is deleted\n".to_owned(),
        "Cluster" => format!("  all copies in {cluster}: no longer chosen, or not granted\n"),
        "Kind" => format!("  all {object} in {cluster}: no longer granted\n"),
        "Copy" => format!("  {object} in {cluster}: another name now\n"),
        "Name" => format!("  {object} everywhere: another name now\n"),
        "Prune" => format!(
            "  {} copies in {cluster}: in namespaces that are no longer targets ({})\n",
            copies.unwrap_or_default(),
            namespaces.join(", ")
        ),
        "Source" => format!("  {object} everywhere: no longer selected\n"),
        other => format!("  {other} {object} {cluster}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn approved_set_differs_from_one_that_changed() {
        let approved = ["d1".to_owned()];
        let waiting =
            |digests: &[&str]| -> Vec<String> { digests.iter().map(ToString::to_string).collect() };
        assert_eq!(approval_outcome(&waiting(&["d1"]), &approved), Outcome::No);
        assert_eq!(
            approval_outcome(&waiting(&["d2"]), &approved),
            Outcome::Other
        );
        assert_eq!(approval_outcome(&[], &approved), Outcome::All);
        assert_eq!(
            approval_outcome(&waiting(&["d0", "d1"]), &approved),
            Outcome::No
        );
        assert_eq!(
            approval_outcome(&waiting(&["d0"]), &approved),
            Outcome::Other
        );
    }

    #[test]
    fn wave_is_listed_and_its_begin_is_the_outcome() {
        let approved = PendingWave {
            digest: "d2".to_owned(),
            wave: 2,
            clusters: 3,
            names: vec!["eu-1".to_owned(), "eu-2".to_owned()],
            ..PendingWave::default()
        };
        assert_eq!(
            describe_wave(&approved),
            "wave 2 waits for approval: 3 clusters (eu-1, eu-2 and 1 more)\n"
        );
        let rollout = |wave, digest: Option<&str>| RolloutStatus {
            wave,
            pending_wave: digest.map(|digest| PendingWave {
                digest: digest.to_owned(),
                ..PendingWave::default()
            }),
            ..RolloutStatus::default()
        };
        let outcome = |wave, digest| wave_outcome(Some(&rollout(wave, digest)), &approved);
        assert_eq!(outcome(1, Some("d2")), Outcome::No);
        assert_eq!(outcome(2, None), Outcome::All);
        assert_eq!(
            outcome(2, Some("d3")),
            Outcome::All,
            "the wave after it waits"
        );
        assert_eq!(outcome(1, Some("other")), Outcome::Other);
        assert_eq!(outcome(1, None), Outcome::Other, "a newer change");
        let closed = RolloutStatus {
            phase: RolloutPhase::AwaitingWindow,
            ..rollout(1, Some("d2"))
        };
        assert_eq!(wave_outcome(Some(&closed), &approved), Outcome::Later);
        assert_eq!(wave_outcome(None, &approved), Outcome::Other);
    }

    #[test]
    fn pending_causes_and_items_are_listed() {
        let cause = PendingApproval {
            cause: "grants changed".to_owned(),
            copies: 60,
            clusters: 2,
            names: vec!["a/r".to_owned(), "a/q".to_owned()],
            ..PendingApproval::default()
        };
        let expected =
            "grants changed: 60 copies of 30 rules in 2 clusters wait for approval (a/r, a/q)";
        assert_eq!(describe(&cause, 30), expected);
        let removal = |scope: &str| BlockedRemoval {
            scope: scope.to_owned(),
            cluster: "eu-1".to_owned(),
            ..BlockedRemoval::default()
        };
        let prune = BlockedRemoval {
            copies: Some(12),
            namespaces: vec!["a".to_owned(), "b".to_owned()],
            ..removal("Prune")
        };
        let blocked = RemovalReviewStatus {
            digest: "d".to_owned(),
            copies: 24,
            removals: vec![removal("Cluster"), prune],
            remaining: 3,
        };
        assert_eq!(
            table(&blocked),
            "  all copies in eu-1: no longer chosen, or not granted\n  12 copies in eu-1: in namespaces that are no longer \
             targets (a, b)\n  and 3 more\n"
        );
    }
}
