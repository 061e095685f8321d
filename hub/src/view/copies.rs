//! Copies: their states, as the agents of the member clusters report them when a client asks.
//!
//! An agent answers from its memory, page by page. The hub passes on what agents answer and adds
//! nothing. Copies of an agent that does not answer are left out, and the response has a warning.
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::response::{IntoResponse, Response};
use futures::stream::{self, StreamExt};
use jiff::Timestamp;
use kube::api::ObjectMeta;
use runnel_api::{
    ClusterCopySpec, CopySpec, CopyStatus, CopyTarget, ListedClusterCopy, ListedCopy, VIEW_GROUP,
};
use runnel_hub_core::now::age;
use runnel_proto::model::{
    COPIES_LIMIT, ClusterName, CopyList, Kinds, ListCopies, RuleName, RuleUid, SourceRef,
};
use serde_json::{Value, json};

use super::delivery::{Reader, Scope, labels_of};
use super::error::ViewError;
use super::explain::{health_texts, returned};
use super::list::ListFormat;
use super::request::{Fields, Position, Query, Selection, object_name};
use super::table::{Column, ViewObject};
use super::target::{Form, Target};
use super::{ViewServer, reported_time, run_blocking, versioned, warn};
use crate::ordered_lock::LeafMutex;

/// The limit of pairs of a rule and a cluster for one page.
const PAIRS: usize = 1000;
/// The number of pairs about which agents are asked at the same time.
const AGENTS: usize = 8;
/// The time limit for the answer of an agent.
const ANSWER: Duration = Duration::from_secs(5);
/// The time after which a page ends.
const PAGE: Duration = Duration::from_secs(20);
/// The number of clusters that a warning names.
const NAMED: usize = 5;

/// One copy, as its agent reports it.
struct CopyRow {
    rule: RuleName,
    cluster: ClusterName,
    copy: SourceRef,
    /// The kind of the copy; its resource if the hub does not know the kind.
    kind: String,
    metadata: ObjectMeta,
    status: CopyStatus,
}

impl CopyRow {
    fn new(pair: &Pair, listed: runnel_proto::model::ListedCopy, kinds: &Kinds) -> Self {
        let (rule, cluster, copy) = (&pair.rule, &pair.cluster, listed.copy);
        let base = object_name(&rule.name, cluster.as_str());
        let metadata = ObjectMeta {
            name: Some(format!(
                "{base}:{}:{}:{}",
                copy.resource, copy.namespace, copy.name
            )),
            namespace: Some(rule.namespace.clone()).filter(|namespace| !namespace.is_empty()),
            uid: Some(format!("{}:{cluster}:{copy}", pair.uid)),
            labels: Some(pair.labels.clone()),
            ..ObjectMeta::default()
        };
        let (reason, message) = listed.copy_error.unzip();
        let (health, health_message) = health_texts(listed.health.as_ref());
        Self {
            rule: rule.clone(),
            cluster: cluster.clone(),
            kind: kinds
                .preferred(&copy.resource)
                .map_or_else(|| copy.resource.to_string(), |kind| kind.kind.to_string()),
            copy,
            metadata,
            status: CopyStatus {
                state: format!("{:?}", listed.outcome),
                reason: reason
                    .map(|reason| reason.as_str().to_owned())
                    .unwrap_or_default(),
                message: message.unwrap_or_default(),
                source: listed
                    .source
                    .map(|source| source.to_string())
                    .unwrap_or_default(),
                applied_at: reported_time(listed.applied_at),
                health,
                health_message,
                feedback: listed.feedback.into_iter().map(returned).collect(),
            },
        }
    }

    fn is_selected(&self, selection: &Selection) -> bool {
        selection.matches(&Fields {
            name: self.metadata.name.as_deref().unwrap_or_default(),
            namespace: &self.rule.namespace,
            rule: &self.rule.name,
            cluster: self.cluster.as_str(),
            state: &self.status.state,
            reason: &self.status.reason,
            target_kind: &self.kind,
            target_namespace: &self.copy.namespace,
            target_name: &self.copy.name,
        })
    }
}

impl ViewObject for CopyRow {
    const COLUMNS: &'static [Column] = &[
        ("Rule", "string", 0, "The rule."),
        ("Cluster", "string", 0, "The member cluster."),
        ("Kind", "string", 0, "The kind of the copy."),
        ("Namespace", "string", 0, "The namespace in the cluster."),
        ("Copy", "string", 0, "The name of the copy."),
        ("State", "string", 0, "The state, as the agent reports it."),
        ("Reason", "string", 0, "Why, if there is a reason."),
        (
            "Applied",
            "string",
            0,
            "How long ago the agent last applied it.",
        ),
        ("Name", "string", 1, "The name of the object in this list."),
        ("Source", "string", 1, "The source on the hub."),
        ("Message", "string", 1, "A sentence for a person."),
        (
            "Health",
            "string",
            1,
            "What the object in the cluster reports of itself.",
        ),
        (
            "Feedback",
            "string",
            1,
            "The fields that the rule has returned.",
        ),
    ];

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn cells(&self, now: Timestamp) -> Value {
        let status = &self.status;
        json!([
            self.rule.name,
            self.cluster.as_str(),
            self.kind.as_str(),
            self.copy.optional_namespace().unwrap_or("<none>"),
            &*self.copy.name,
            status.state,
            status.reason,
            age(status.applied_at.as_ref().map(|at| at.0), now),
            self.metadata.name,
            status.source,
            status.message,
            status.health,
            status
                .feedback
                .iter()
                .map(|field| format!("{}={}", field.name, field.value))
                .collect::<Vec<_>>()
                .join(" "),
        ])
    }

    fn object(&self) -> Value {
        let target = CopyTarget {
            kind: self.kind.clone(),
            namespace: self.copy.namespace.to_string(),
            name: self.copy.name.to_string(),
        };
        let (rule, cluster) = (self.rule.name.clone(), self.cluster.as_str().to_owned());
        let (metadata, status) = (self.metadata.clone(), Some(self.status.clone()));
        let object = if self.rule.is_cluster_scoped() {
            let spec = ClusterCopySpec {
                rule,
                cluster,
                target,
            };
            serde_json::to_value(ListedClusterCopy {
                metadata,
                spec,
                status,
            })
        } else {
            let spec = CopySpec {
                rule,
                cluster,
                target,
            };
            serde_json::to_value(ListedCopy {
                metadata,
                spec,
                status,
            })
        };
        object.expect("a copy has only text")
    }
}

/// A rule in one of its clusters.
#[derive(Clone, Debug)]
struct Pair {
    rule: RuleName,
    uid: RuleUid,
    cluster: ClusterName,
    labels: BTreeMap<String, String>,
    /// The copies after this one are listed; `None`: all.
    after: Option<SourceRef>,
}

impl Pair {
    fn position(&self, copy: Option<&SourceRef>) -> Position {
        Position {
            namespace: self.rule.namespace.clone(),
            rule: self.rule.name.clone(),
            cluster: self.cluster.as_str().to_owned(),
            copy: copy.map(|copy| {
                [&copy.resource, &copy.namespace, &copy.name].map(|part| part.to_string())
            }),
        }
    }
}

/// The pairs of one page.
struct Pairs {
    pairs: Vec<Pair>,
    /// Whether more pairs follow.
    more: bool,
}

/// What an agent answered about one pair.
struct CopyListing {
    pair: Pair,
    rows: Vec<CopyRow>,
    /// The last copy that was considered.
    last: Option<SourceRef>,
    /// Whether more copies follow.
    more: bool,
}

impl CopyListing {
    fn of(pair: Pair) -> Self {
        Self {
            last: pair.after.clone(),
            pair,
            rows: Vec::new(),
            more: true,
        }
    }
}

/// The copies of one page.
struct CopyPage {
    rows: Vec<CopyRow>,
    next: Option<Position>,
    /// The clusters whose copies are missing.
    missing: BTreeSet<ClusterName>,
}

impl Reader<'_> {
    /// Returns the rules of a scope in each of their clusters, as far as a request selects them.
    fn pairs(&self, scope: &Scope, query: &Query) -> Result<Pairs, ViewError> {
        self.serving_since()?;
        let selection = &query.selection;
        let only_rule = selection.rule();
        let only_cluster = selection.cluster().map(ClusterName::from);
        let mut pairs = Vec::new();
        for (rule, uid) in self.rules(|rule| scope.has(rule)) {
            if only_rule.is_some_and(|only| only != rule.name) || pairs.len() > PAIRS {
                continue;
            }
            let index = self.hub_state.index.read();
            let Some(entry) = index.rules().get(&uid) else {
                continue;
            };
            let all = &entry.target_clusters.clusters;
            // There may be very many of both: a request for one cluster looks it up.
            let (one, all) = match &only_cluster {
                Some(only) => (all.get_key_value(only), None),
                None => (None, Some(all)),
            };
            let clusters = one.into_iter().chain(all.into_iter().flatten());
            for (cluster, _) in clusters {
                let mut pair = Pair {
                    rule: rule.clone(),
                    uid: uid.clone(),
                    cluster: cluster.clone(),
                    labels: labels_of(&index, &rule, cluster),
                    after: None,
                };
                if selection.matches_labels(&pair.labels) && begins(&mut pair, query.after.as_ref())
                {
                    pairs.push(pair);
                }
                if pairs.len() > PAIRS {
                    break;
                }
            }
        }
        bounded(pairs, only_rule.is_some() || only_cluster.is_some())
    }
}

/// Limits the pairs of one page. A request that selects neither a rule nor a cluster is refused
/// above the limit.
fn bounded(mut pairs: Vec<Pair>, selects_one: bool) -> Result<Pairs, ViewError> {
    let more = pairs.len() > PAIRS;
    if more && !selects_one {
        return Err(ViewError::BadRequest(format!(
            "there are more than {PAIRS} pairs of a rule and a member cluster: select one rule or one cluster, such as --field-selector cluster=NAME"
        )));
    }
    pairs.truncate(PAIRS);
    Ok(Pairs { pairs, more })
}

/// Whether a page after a position has copies of a pair. Sets the copy after which they begin.
fn begins(pair: &mut Pair, after: Option<&Position>) -> bool {
    let Some(after) = after else {
        return true;
    };
    let here = (&pair.rule.namespace, &pair.rule.name, pair.cluster.as_str());
    let there = (&after.namespace, &after.rule, after.cluster.as_str());
    match (here.cmp(&there), &after.copy) {
        (Ordering::Less, _) | (Ordering::Equal, None) => false,
        (Ordering::Equal, Some([resource, namespace, name])) => {
            pair.after = Some(SourceRef::new(resource, namespace, name));
            true
        }
        (Ordering::Greater, _) => true,
    }
}

impl ViewServer {
    /// Lists copies.
    pub(super) async fn copies(
        self: &Arc<Self>,
        target: &Target,
        query: &Query,
        form: Form,
    ) -> Result<Response, ViewError> {
        let _turn = tokio::time::timeout(PAGE, self.listings.acquire())
            .await
            .map_err(|_| {
                ViewError::Timeout("too many lists of copies at a time: try again".to_owned())
            })?;
        let page = self.copy_page(target.scope(), query).await?;
        let version = query.first.unwrap_or_else(|| self.changes().version());
        let format = ListFormat::new(form, target, query);
        let mut response = format.whole(page.rows, page.next.as_ref(), version);
        if !page.missing.is_empty() {
            warn(&mut response, &missing_text(&page.missing));
        }
        Ok(response)
    }

    /// Returns one copy.
    pub(super) async fn copy(
        self: &Arc<Self>,
        target: &Target,
        name: &str,
        query: &Query,
        form: Form,
    ) -> Result<Response, ViewError> {
        let unknown =
            || ViewError::NotFound(format!("{}.{VIEW_GROUP} {name:?}", target.resource.plural));
        let [_, _, resource, namespace, copy]: [&str; 5] = name
            .splitn(5, ':')
            .collect::<Vec<_>>()
            .try_into()
            .map_err(|_| unknown())?;
        let only = SourceRef::checked(resource, namespace, copy).ok_or_else(unknown)?;
        let (server, scope) = (self.clone(), target.scope());
        let selected = Query {
            selection: Selection::of_name(name),
            limit: 1,
            ..query.clone()
        };
        let asked = selected.clone();
        let pairs = run_blocking(move || server.reader().pairs(&scope, &asked)).await??;
        let pair = pairs.pairs.into_iter().next().ok_or_else(unknown)?;
        let answer = self.ask_for_copies(&pair, Some(only), 1).await;
        let answer = answer.ok_or_else(|| {
            ViewError::Timeout(missing_text(&BTreeSet::from([pair.cluster.clone()])))
        })?;
        let row = answer
            .copies
            .into_iter()
            .map(|listed| CopyRow::new(&pair, listed, &self.hub_state.kinds.borrow()))
            .find(|row| row.is_selected(&selected.selection))
            .ok_or_else(unknown)?;
        let version = self.changes().version();
        Ok(Json(form.one(versioned(row, version), version, query)).into_response())
    }

    async fn copy_page(
        self: &Arc<Self>,
        scope: Scope,
        query: &Query,
    ) -> Result<CopyPage, ViewError> {
        let (server, asked) = (self.clone(), query.clone());
        let Pairs { pairs, more } =
            run_blocking(move || server.reader().pairs(&scope, &asked)).await??;
        let (all, end) = (pairs.len(), Instant::now() + PAGE);
        let missing = LeafMutex::new(BTreeSet::new());
        // Several listings run at a time, so none of them gathers more than one answer holds.
        let ahead = query.limit.min(COPIES_LIMIT);
        let mut listings = stream::iter(pairs)
            .map(|pair| async {
                let mut listing = CopyListing::of(pair);
                self.fill(&mut listing, ahead, query, &missing, end).await;
                listing
            })
            .buffered(AGENTS)
            .enumerate();
        let (mut rows, mut next) = (Vec::new(), None);
        while let Some((number, mut listing)) = listings.next().await {
            let room = query.limit.saturating_sub(rows.len());
            self.fill(&mut listing, room, query, &missing, end).await;
            let is_cut = listing.rows.len() > room;
            if is_cut {
                listing.rows.truncate(room);
                listing.last = listing.rows.last().map(|row| row.copy.clone());
            }
            rows.append(&mut listing.rows);
            if is_cut || listing.more {
                let last = listing.last.as_ref().or(listing.pair.after.as_ref());
                next = Some(listing.pair.position(last));
                break;
            }
            if rows.len() >= query.limit || Instant::now() >= end {
                next = (more || number + 1 < all).then(|| listing.pair.position(None));
                break;
            }
            next = more.then(|| listing.pair.position(None));
        }
        drop(listings);
        let missing = missing.lock().clone();
        Ok(CopyPage {
            rows,
            next,
            missing,
        })
    }

    /// Asks the agent of a cluster for the copies of a rule, until there are `limit` of them.
    async fn fill(
        &self,
        listing: &mut CopyListing,
        limit: usize,
        query: &Query,
        missing: &LeafMutex<BTreeSet<ClusterName>>,
        end: Instant,
    ) {
        while listing.more && listing.rows.len() < limit {
            if missing.lock().contains(&listing.pair.cluster) {
                listing.more = false;
                break;
            }
            let asked = Pair {
                after: listing.last.clone(),
                ..listing.pair.clone()
            };
            let Some(answer) = self.ask_for_copies(&asked, None, COPIES_LIMIT).await else {
                missing.lock().insert(listing.pair.cluster.clone());
                listing.more = false;
                break;
            };
            take_in(listing, answer, query, &self.hub_state.kinds.borrow());
            // Each pair is asked about at least once: the next page begins after what was seen.
            if Instant::now() >= end {
                break;
            }
        }
    }

    /// Asks the agent of a cluster for one page; `None` if it does not answer.
    async fn ask_for_copies(
        &self,
        pair: &Pair,
        only: Option<SourceRef>,
        limit: usize,
    ) -> Option<CopyList> {
        let connected = {
            let report_store = self.hub_state.report_store.lock();
            report_store
                .session(&pair.cluster, Instant::now())
                .is_some()
        };
        if !connected {
            return None;
        }
        let live = self.hub_state.sessions.get(&pair.cluster)?.clone();
        let answered = live.inquiries.list(Box::new(ListCopies {
            question: 0,
            rule: pair.uid.clone(),
            after: pair.after.clone(),
            only,
            limit: u32::try_from(limit).unwrap_or(u32::MAX),
        }))?;
        live.wake.notify_one();
        drop(live);
        tokio::time::timeout(ANSWER, answered).await.ok()?.ok()
    }
}

/// Adds the selected copies of an answer. Copies out of order are left out, so that each page of a
/// broken agent begins after the one before.
fn take_in(listing: &mut CopyListing, answer: CopyList, query: &Query, kinds: &Kinds) {
    listing.more = answer.more && !answer.copies.is_empty();
    for listed in answer.copies {
        if listing
            .last
            .as_ref()
            .is_some_and(|last| listed.copy <= *last)
        {
            listing.more = false;
            return;
        }
        if listing.rows.len() >= query.limit {
            listing.more = true;
            return;
        }
        listing.last = Some(listed.copy.clone());
        let row = CopyRow::new(&listing.pair, listed, kinds);
        if row.is_selected(&query.selection) {
            listing.rows.push(row);
        }
    }
}

fn missing_text(missing: &BTreeSet<ClusterName>) -> String {
    let names: Vec<_> = missing
        .iter()
        .take(NAMED)
        .map(ClusterName::as_str)
        .collect();
    let more = match missing.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "copies are not listed of member clusters that are not connected or did not answer in time: {}{more}",
        names.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use runnel_proto::model::{CopyOutcome, Kind};

    use super::*;
    use crate::view::request::{COPY_FIELDS, query};

    fn pair() -> Pair {
        Pair {
            rule: RuleName {
                kind: "DistributionRule".into(),
                namespace: "shop".into(),
                name: "r".into(),
            },
            uid: "uid".into(),
            cluster: "eu-1".into(),
            labels: BTreeMap::new(),
            after: None,
        }
    }

    fn copy(name: &str) -> runnel_proto::model::ListedCopy {
        runnel_proto::model::ListedCopy {
            copy: SourceRef::new("secrets", "web", name),
            source: Some(SourceRef::new("secrets", "shop", name)),
            outcome: CopyOutcome::Applied,
            copy_error: None,
            applied_at: 0,
            health: None,
            feedback: vec![],
        }
    }

    fn taken(text: &str, names: &[&str], more: bool) -> (Vec<String>, bool) {
        let mut listing = CopyListing {
            pair: pair(),
            rows: vec![],
            last: None,
            more: true,
        };
        let answer = CopyList {
            copies: names.iter().map(|name| copy(name)).collect(),
            more,
            ..CopyList::default()
        };
        let query = query(text, COPY_FIELDS).unwrap();
        let kinds = Kind::supported().iter().cloned().collect();
        take_in(&mut listing, answer, &query, &kinds);
        let names = listing.rows.iter().map(|row| row.copy.name.to_string());
        (names.collect(), listing.more)
    }

    #[test]
    fn page_takes_selected_copies_up_to_the_limit() {
        let of = |names: &[&str]| {
            names
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            taken("limit=9", &["a", "b"], false),
            (of(&["a", "b"]), false)
        );
        assert_eq!(taken("limit=1", &["a", "b"], false), (of(&["a"]), true));
        let named = "fieldSelector=name%3Db,kind%3DSecret,namespace%3Dweb,state%3DApplied";
        assert_eq!(taken(named, &["a", "b"], true), (of(&["b"]), true));
    }

    #[test]
    fn copies_out_of_order_end_the_answer() {
        let (names, more) = taken("", &["b", "a", "c"], true);
        assert_eq!((names, more), (vec!["b".to_owned()], false));
        assert_eq!(taken("", &[], true), (vec![], false));
    }

    #[test]
    fn page_begins_after_the_position_of_the_last_one() {
        let last = SourceRef::new("secrets", "web", "a");
        let within = pair().position(Some(&last));
        let mut same = pair();
        assert!(begins(&mut same, Some(&within)));
        assert_eq!(same.after, Some(last));
        assert!(!begins(&mut pair(), Some(&pair().position(None))));
        let mut later = Pair {
            cluster: "eu-2".into(),
            ..pair()
        };
        assert!(begins(&mut later, Some(&within)) && later.after.is_none());
    }

    #[test]
    fn unbounded_list_needs_a_rule_or_a_cluster() {
        let of = |count: usize, selects_one: bool| {
            let page = bounded(vec![pair(); count], selects_one)?;
            Ok::<_, ViewError>((page.pairs.len(), page.more))
        };
        assert_eq!(of(PAIRS, false).ok(), Some((PAIRS, false)));
        assert_eq!(of(PAIRS + 1, true).ok(), Some((PAIRS, true)));
        let Err(ViewError::BadRequest(message)) = of(PAIRS + 1, false) else {
            unreachable!("it is listed");
        };
        assert!(
            message.contains("select one rule or one cluster"),
            "{message}"
        );
    }

    #[test]
    fn warning_names_the_first_clusters() {
        let many = (0..9).map(|number| ClusterName::from(format!("eu-{number}")));
        let text = missing_text(&many.collect());
        assert!(text.ends_with("eu-3, eu-4 and 4 more"), "{text}");
    }
}
