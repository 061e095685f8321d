//! A rule is tried without a trace; the removal guard judges it as it would.
use std::sync::Arc;

use runnel_api::BUNDLE_KIND;
use runnel_proto::model::{
    Content, DIFF_FIELDS, FieldDiff, FieldsKey, Kind, Kinds, PREVIEW_LIMIT, Payload,
    PreviewOutcome, PreviewRequest, PreviewResult, PreviewedCopy, Revision, RevisionKey, SourceRef,
};
use serde_json::{Value, json};

use super::*;
use crate::guard::{FleetTerms, Limit};
use crate::index::{ChangedObject, Cluster};
use crate::plan::{RuleGrant, SourceContent, read_bundle, read_source};
use crate::rollout::{AdmittedClusters, Gate};

const KEY: FieldsKey = FieldsKey([5; 32]);

fn rule(names: &[&str], more: &Value) -> Rule {
    let mut spec = json!({
        "sources": [{"resources": ["configmaps"], "names": names}], "clusters": {"all": true},
        "removalLimit": {"count": 10},
    });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let object = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule", "spec": spec,
        "metadata": {"name": "all", "namespace": "home", "uid": "all", "generation": 1},
    });
    Rule::namespaced(&serde_json::from_value(object).unwrap(), "runnel-system").unwrap()
}

fn source(name: &str) -> SourceRef {
    SourceRef::new("configmaps", "home", name)
}

fn body(name: &str) -> SourceState {
    let data = json!({"k": name});
    let content = Content {
        fields: BTreeMap::from([("data".to_owned(), data)]),
        ..Content::default()
    };
    SourceState::Read(Arc::new(SourceContent::new(
        Revision([name.len() as u8; 16]),
        Payload::encode(content.to_bytes()),
    )))
}

/// Creates a hub with two members, a grant for all, and a number of sources.
fn index(sources: usize) -> Index {
    let mut index = Index::default();
    let grant = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionGrant", "metadata": {"name": "g"},
        "spec": {
            "rules": {"namespaces": {"all": true}}, "resources": ["configmaps"], "clusters": {"all": true},
            "namespaces": {"all": true}, "policies": {"overwrite": true, "adopt": true, "createNamespaces": true},
        },
    });
    let grant = RuleGrant::read(&serde_json::from_value(grant).unwrap());
    index.set_grants(Some(BTreeMap::from([("g".to_owned(), grant)])));
    for name in ["one", "two"] {
        let cluster = Cluster {
            uid: name.into(),
            accepted: true,
            was_connected: true,
            ..Cluster::default()
        };
        index.set_cluster(name.into(), cluster);
    }
    let limit = Limit {
        count: 50,
        percent: 1,
    };
    index.set_fleet_terms(FleetTerms {
        fleet: limit,
        member: limit,
        ..FleetTerms::default()
    });
    index.set_scope(WatchScope::everywhere("configmaps"), ScopeState::Known);
    for number in 0..sources {
        let name = format!("s{number}");
        index.set_source(source(&name), BTreeMap::new(), Some(body(&name)));
    }
    index
}

fn preview_of(index: &Index, rule: Rule) -> PreviewIndex {
    let uids = BTreeSet::from([rule.uid.clone()]);
    PreviewIndex::new(index.around(&uids, Some(&rule)), rule)
}

/// Returns the request to a cluster, and the number of omitted sources.
fn ask(preview: &PreviewIndex, cluster: &str, dry_run: bool) -> (Box<PreviewRequest>, usize) {
    let question = preview
        .question(&cluster.into(), &QuestionContext::new(KEY, dry_run, true))
        .unwrap();
    (question.asked, question.left_out)
}

fn now() -> crate::now::Now {
    crate::now::Now {
        instant: std::time::Instant::now(),
        wall: jiff::Timestamp::UNIX_EPOCH,
    }
}

fn no_agents(_: &RuleUid, _: &ClusterName) -> Option<crate::index::ReportedCopies> {
    None
}

fn read_all(preview: &mut PreviewIndex) {
    for source in preview.unread().clone() {
        preview.read(&source, body(&source.name));
    }
}

#[test]
fn unsaved_rule_leaves_no_trace() {
    let index = index(2);
    let before = index.directives_since(&"one".into(), 0).1;
    let mut preview = preview_of(&index, rule(&["s*"], &json!({})));
    assert!(!preview.exists() && preview.unlisted().is_empty());
    // Sources that no rule has needed are unknown.
    assert_eq!(preview.unread().len(), 2);
    read_all(&mut preview);
    preview.judge(&no_agents, now());
    let clusters: Vec<_> = preview
        .clusters(&no_agents)
        .into_iter()
        .map(|ask| (ask.cluster, ask.eligibility))
        .collect();
    assert_eq!(
        clusters,
        [
            ("one".into(), ClusterEligibility::Eligible),
            ("two".into(), ClusterEligibility::Eligible)
        ]
    );
    let (asked, left_out) = ask(&preview, "one", false);
    assert_eq!(
        (asked.intents.len(), left_out, asked.tombstones.len()),
        (2, 0, 0)
    );
    assert!(
        asked
            .intents
            .iter()
            .all(|one| one.intent.payload.bytes().is_empty()),
        "content goes along"
    );
    let (tried, _) = ask(&preview, "one", true);
    assert!(
        tried
            .intents
            .iter()
            .all(|one| one.intent.payload.decode().is_ok())
    );
    assert_eq!(
        (
            preview.sent(),
            preview.notes().len(),
            preview.sources(9).len()
        ),
        (2, 0, 0)
    );
    assert!(
        index.rules().get(&"all".into()).is_none()
            && index.directives_since(&"one".into(), 0).1 == before
    );
    assert!(!index.planner().needs(&source("s0"), &BTreeMap::new()));
}

#[test]
fn plan_names_what_copies_do_not_get_unless_the_rule_allows_it() {
    let kind = Kind::by_resource("configmaps").unwrap();
    let object = json!({"metadata": {"labels": {
        "app.kubernetes.io/managed-by": "Helm", "app.kubernetes.io/instance": "web", "app": "web",
    }}});
    let key = RevisionKey::new(&[]);
    let body = |source| read_source(kind, &source, &object, &Kinds::default(), &key);
    let notes = |more| {
        let index = index(2);
        let mut preview = preview_of(&index, rule(&["s*"], &more));
        for source in preview.unread().clone() {
            preview.read(&source, body(source.clone()));
        }
        preview.notes()
    };
    let managed_by = "/metadata/labels/app.kubernetes.io~1managed-by";
    let instance = "/metadata/labels/app.kubernetes.io~1instance";
    let expected = |paths| [format!("copies of configmaps do not get {paths}")];
    assert_eq!(
        notes(json!({})),
        expected(format!("{instance}, {managed_by}"))
    );
    let allowed = json!({"transform": {"labels": {"allow": ["app.kubernetes.io/*"]}}});
    assert_eq!(notes(allowed), expected(managed_by.to_owned()));
}

#[test]
fn a_place_that_could_not_be_listed_is_not_an_empty_one() {
    let mut index = index(0);
    index.set_scope(WatchScope::everywhere("configmaps"), ScopeState::Unwatched);
    let mut preview = preview_of(&index, rule(&["s*"], &json!({})));
    assert!(!preview.is_incomplete());
    for scope in preview.unlisted() {
        preview.cannot_list(scope, "there are too many of them");
    }
    assert!(preview.is_incomplete() && preview.unlisted().is_empty());
    assert!(
        preview.notes()[0]
            .starts_with("configmaps could not be listed (there are too many of them)")
    );
}

/// The result of an edit of a saved rule with `sources` intents, all of which each agent has.
fn edited(sources: usize, from: Rule, to: Rule) -> (usize, usize) {
    let mut index = index(sources);
    index.set_rule(from);
    for number in 0..sources {
        let name = format!("s{number}");
        index.set_source(source(&name), BTreeMap::new(), Some(body(&name)));
    }
    let copies = sources as u64;
    let holds = |_: &RuleUid, _: &ClusterName| {
        Some(crate::index::ReportedCopies {
            copies,
            intents: copies,
            ..Default::default()
        })
    };
    let mut preview = preview_of(&index, to);
    assert!(preview.exists());
    read_all(&mut preview);
    preview.judge(&holds, now());
    let (asked, _) = ask(&preview, "one", false);
    (asked.tombstones.len(), asked.blocked.len())
}

#[test]
fn stopped_preview_renders_nothing_more() {
    let set = json!({"mergePatch": {"data": {"a": "b"}}, "clusters": {"all": true}});
    let rule = || rule(&["s*"], &json!({"overrides": [set]}));
    let index = index(9);
    let sent = |stops_after: usize| {
        let stop = StopFlag::default();
        let around = index.around(&BTreeSet::new(), Some(&rule()));
        let mut preview = PreviewIndex::new(around.until(stop.clone()), rule());
        for (number, source) in preview.unread().clone().into_iter().enumerate() {
            if number == stops_after {
                stop.set();
            }
            preview.read(&source, body(&source.name));
        }
        ask(&preview, "one", false).0.intents.len()
    };
    assert_eq!(sent(99), 9);
    assert!(sent(3) <= 3 && sent(0) == 0);
}

#[test]
fn removals_of_an_edit_are_judged_by_the_guard() {
    let all = || rule(&["s*"], &json!({}));
    let few = || rule(&["s0", "s1"], &json!({}));
    assert_eq!(edited(4, all(), few()), (2, 0));
    assert_eq!(edited(12, all(), few()), (0, 10));
    let unlimited = rule(
        &["s0", "s1"],
        &json!({"removalLimit": {"count": 100, "percent": 100}}),
    );
    assert_eq!(edited(12, all(), unlimited), (10, 0));
    // Copies under new names are created before the former ones are removed.
    assert_eq!(
        edited(
            2,
            all(),
            rule(&["s*"], &json!({"transform": {"name": "x-${source.name}"}}))
        ),
        (2, 0)
    );
    assert_eq!(
        edited(
            12,
            all(),
            rule(&["s*"], &json!({"transform": {"name": "x-${source.name}"}}))
        ),
        (0, 12)
    );
}

#[test]
fn items_beyond_the_limit_of_a_question_are_counted() {
    let mut index = index(0);
    index.set_rule(rule(&["s*"], &json!({})));
    for number in 0..=PREVIEW_LIMIT {
        let name = format!("s{number}");
        index.set_source(source(&name), BTreeMap::new(), Some(body(&name)));
    }
    let unlimited = json!({"removalLimit": {"count": 100_000, "percent": 100}});
    let mut preview = preview_of(&index, rule(&["none"], &unlimited));
    preview.judge(&no_agents, now());
    let (asked, left_out) = ask(&preview, "one", false);
    assert_eq!(
        (asked.tombstones.len() + asked.blocked.len(), left_out),
        (PREVIEW_LIMIT, 1)
    );
}

#[test]
fn clusters_behind_in_a_rollout_are_named() {
    let mut index = index(1);
    let waves = json!({"rollout": {"maxConcurrency": 1}});
    let unread = index.set_rule(rule(&["s*"], &waves)).read;
    for source in unread {
        index.set_source(source.clone(), BTreeMap::new(), Some(body(&source.name)));
    }
    let behind = |index: &Index, more: &Value| -> Vec<bool> {
        let mut preview = preview_of(index, rule(&["s*"], more));
        preview.judge(&no_agents, now());
        preview
            .clusters(&no_agents)
            .into_iter()
            .map(|ask| ask.message.contains("the current rollout"))
            .collect()
    };
    let set_gate = |index: &mut Index, reach: AdmittedClusters| {
        let revision = index
            .rules()
            .get(&"all".into())
            .unwrap()
            .target()
            .to_owned();
        index.set_gate(
            &"all".into(),
            Gate {
                revision,
                reach,
                is_settled: false,
                wakes_at: None,
                back_to: None,
                healthy: Default::default(),
                newly_chosen: Default::default(),
                is_blocked: false,
                is_paused: false,
            },
        );
    };
    set_gate(
        &mut index,
        AdmittedClusters::Only(BTreeMap::from([("one".into(), now().instant)])),
    );
    assert_eq!(
        (behind(&index, &waves), behind(&index, &json!({}))),
        (vec![false, true], vec![false, true])
    );
    set_gate(&mut index, AdmittedClusters::All);
    assert_eq!(
        (behind(&index, &waves), behind(&index, &json!({}))),
        (vec![false; 2], vec![false; 2])
    );
}

#[test]
fn plan_lists_waves_and_clusters_without_copies() {
    let mut index = index(1);
    index.set_cluster("away".into(), Cluster::default());
    let cordoned = Cluster {
        uid: "c".into(),
        accepted: true,
        cordoned: true,
        ..Cluster::default()
    };
    index.set_cluster("calm".into(), cordoned);
    let mut preview = preview_of(
        &index,
        rule(&["s*"], &json!({"rollout": {"maxConcurrency": 2}})),
    );
    read_all(&mut preview);
    preview.judge(&no_agents, now());
    let reply: Vec<_> = preview
        .clusters(&no_agents)
        .into_iter()
        .map(|ask| (ask.cluster, ask.eligibility, ask.wave))
        .collect();
    let expected = [
        ("away".into(), ClusterEligibility::NotAccepted, 0),
        ("calm".into(), ClusterEligibility::Eligible, 1),
        ("one".into(), ClusterEligibility::Eligible, 1),
        ("two".into(), ClusterEligibility::Eligible, 2),
    ];
    assert_eq!(reply, expected);
    let (asked, _) = ask(&preview, "one", false);
    assert_eq!(asked.intents.len(), 1);
    // No cluster is tried before its wave, or gets content.
    let (asked, _) = ask(&preview, "one", true);
    assert!(
        !asked.dry_run
            && asked
                .intents
                .iter()
                .all(|one| one.intent.payload.bytes().is_empty())
    );
    let (asked, _) = ask(&preview, "calm", false);
    assert!(asked.terms.is_none() && asked.intents.is_empty());
}

#[test]
fn preview_of_a_deleted_rule_requests_its_removal() {
    let mut index = index(12);
    index.set_rule(rule(&["s*"], &json!({})));
    for number in 0..12 {
        let name = format!("s{number}");
        index.set_source(source(&name), BTreeMap::new(), Some(body(&name)));
    }
    let holds = |_: &RuleUid, _: &ClusterName| {
        Some(crate::index::ReportedCopies {
            copies: 12,
            intents: 12,
            ..Default::default()
        })
    };
    let mut preview = preview_of(&index, rule(&["s*"], &json!({})).deleted());
    preview.judge(&holds, now());
    let (asked, _) = ask(&preview, "one", false);
    assert!(
        preview.exists() && asked.removal.is_some() && asked.terms.is_none() && !asked.blocks_all
    );
    assert!(!index.rules().get(&"all".into()).unwrap().rule.deleting);
}

/// The clusters of a preview with their requests: `removal`, `blocked` or `terms`.
fn questions(preview: &PreviewIndex) -> Vec<(String, &'static str)> {
    let one = |ask: ClusterQuestion| {
        let name = ask.cluster.as_str().to_owned();
        let (asked, _) = match ask.eligibility {
            ClusterEligibility::Eligible => super::tests::ask(preview, &name, false),
            _ => return (name, "not asked"),
        };
        let what = if asked.blocks_all {
            "blocked"
        } else if asked.removal.is_some() {
            "removal"
        } else {
            "terms"
        };
        (name, what)
    };
    preview.clusters(&no_agents).into_iter().map(one).collect()
}

fn saved(sources: usize) -> Index {
    let mut index = index(sources);
    index.set_rule(rule(&["s*"], &json!({})));
    for number in 0..sources {
        let name = format!("s{number}");
        index.set_source(source(&name), BTreeMap::new(), Some(body(&name)));
    }
    index
}

fn changed(index: &Index, object: ChangedObject, copies: u64) -> Option<PreviewIndex> {
    let member = match &object {
        ChangedObject::Member(name, _) => Some(name.clone()),
        ChangedObject::Grant(..) | ChangedObject::Bundle(..) => None,
    };
    let part = index.targets().with_change(object.clone());
    let affected = index
        .rules()
        .iter()
        .filter(|(_, entry)| index.targets().differ_for(entry, member.as_ref(), &part))
        .map(|(uid, _)| uid.clone())
        .collect();
    let mut preview = PreviewIndex::of_change(index.around(&affected, None), object, &affected)?;
    let holds = |_: &RuleUid, _: &ClusterName| {
        Some(crate::index::ReportedCopies {
            copies,
            intents: copies,
            ..Default::default()
        })
    };
    preview.judge(&holds, now());
    Some(preview)
}

#[test]
fn deleted_grant_is_blocked_above_the_limit_alone() {
    let all = |what| vec![("one".to_owned(), what), ("two".to_owned(), what)];
    let few = changed(&saved(2), ChangedObject::Grant("g".into(), None), 2).unwrap();
    assert_eq!(questions(&few), all("removal"));
    let index = saved(12);
    let many = changed(&index, ChangedObject::Grant("g".into(), None), 12).unwrap();
    assert_eq!(questions(&many), all("blocked"));
    assert_eq!(many.rules(), ["all".into()]);
    // No state is kept, and an equal grant changes no rule.
    let same = index.targets().grants().get("g").cloned().map(Box::new);
    assert!(
        same.is_some() && changed(&index, ChangedObject::Grant("g".into(), same), 12).is_none()
    );
}

#[test]
fn relabeled_member_changes_rules_that_select_it_alone() {
    let mut index = saved(2);
    let labeled = |labels: &[(&str, &str)]| Cluster {
        uid: "one".into(),
        accepted: true,
        was_connected: true,
        labels: labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
        ..Cluster::default()
    };
    let member =
        |labels: &[(&str, &str)]| ChangedObject::Member("one".into(), Some(labeled(labels)));
    assert!(
        changed(&index, member(&[("tier", "prod")]), 2).is_none(),
        "the rule selects all clusters"
    );
    let some = json!({"clusters": {"selector": {"matchLabels": {"tier": "prod"}}}});
    index.set_rule(rule(&["s*"], &some));
    index.set_cluster("one".into(), labeled(&[("tier", "prod")]));
    assert!(changed(&index, member(&[("tier", "prod"), ("other", "x")]), 2).is_none());
    let left = changed(&index, member(&[("tier", "test")]), 2).unwrap();
    assert_eq!(questions(&left), [("one".to_owned(), "removal")]);
    index.set_cluster("one".into(), labeled(&[]));
    let joined = changed(&index, member(&[("tier", "prod")]), 2).unwrap();
    assert_eq!(questions(&joined), [("one".to_owned(), "terms")]);
    // Copies that are rendered with the labels of the cluster change with them.
    let rendered = json!({"transform": {"name": "${source.name}-${cluster.labels.tier}"}});
    index.set_rule(rule(&["s*"], &rendered));
    index.set_cluster("one".into(), labeled(&[("tier", "test")]));
    assert!(changed(&index, member(&[("tier", "prod")]), 2).is_some());
}

#[test]
fn rules_of_one_change_are_judged_together() {
    let mut index = saved(12);
    let mut second = rule(&["s*"], &json!({}));
    second.uid = "second".into();
    index.set_rule(second);
    let mut preview = changed(&index, ChangedObject::Grant("g".into(), None), 12).unwrap();
    let uids = preview.rules();
    assert_eq!(uids.len(), 2);
    for uid in &uids {
        preview.focus_on(uid);
        assert!(
            preview.uid() == uid
                && questions(&preview)
                    .iter()
                    .all(|(_, what)| *what == "blocked")
        );
    }
    let copy = |previewed| PreviewedCopy {
        copy: SourceRef::new("configmaps", "a", "s0"),
        source: source("s0"),
        previewed,
        copy_error: None,
        diff: FieldDiff::default(),
    };
    let answer = |previewed| {
        let copies = vec![copy(previewed)];
        let answer = PreviewResult {
            question: 1,
            copies,
            more: 0,
            last: true,
            unanswered: String::new(),
        };
        BTreeMap::from([(
            ClusterName::from("one"),
            AgentAnswer::of(
                answer,
                &mut AnswerBudget {
                    copies: 9,
                    diffs: 9,
                },
            ),
        )])
    };
    let all = uids
        .iter()
        .map(|uid| (uid.clone(), answer(PreviewOutcome::Blocked)))
        .collect();
    let rows = preview.conclude_all(all, &no_agents, now(), 9);
    let verdicts: Vec<_> = rows
        .iter()
        .flat_map(|(_, rows)| rows)
        .map(|row| row.verdict.as_str())
        .collect();
    assert_eq!(verdicts, ["blocked", "blocked"]);
}

#[test]
fn digests_of_fields_are_sent_within_the_bounds() {
    let of = |fields: usize, asking: &QuestionContext| {
        let data: serde_json::Map<String, Value> =
            (0..fields).map(|n| (format!("k{n}"), json!("v"))).collect();
        let fields = BTreeMap::from([("data".to_owned(), Value::Object(data))]);
        let payload = Payload::encode(
            Content {
                fields,
                ..Content::default()
            }
            .to_bytes(),
        );
        let content = SourceContent::new(Revision([1; 16]), payload);
        let mut index = index(1);
        index.set_rule(rule(&["s*"], &json!({})));
        index.set_source(
            source("s0"),
            BTreeMap::new(),
            Some(SourceState::Read(Arc::new(content))),
        );
        let mut preview = preview_of(&index, rule(&["s*"], &json!({})));
        preview.judge(&no_agents, now());
        let asked = preview.question(&"one".into(), asking).unwrap().asked;
        asked.intents[0]
            .digests
            .as_ref()
            .map(|digests| digests.len())
    };
    let context = |diff| QuestionContext::new(KEY, false, diff);
    assert_eq!(of(DIFF_FIELDS, &context(true)), Some(DIFF_FIELDS));
    assert_eq!(of(DIFF_FIELDS + 1, &context(true)), None);
    assert_eq!(of(2, &context(false)), None);
}

/// The content of a bundle of ConfigMaps with these names.
fn bundled(bundle: &SourceRef, names: &[&str]) -> SourceState {
    let manifest =
        |name: &&str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let manifests: Vec<_> = names.iter().map(manifest).collect();
    let object = json!({"spec": {"manifests": manifests}});
    let kinds = Kind::supported().iter().cloned().collect();
    let read = read_bundle(bundle, &object, &kinds, &RevisionKey::new(&[]));
    SourceState::Read(read.unwrap().into())
}

#[test]
fn changed_bundle_changes_the_rules_that_select_it() {
    let app = SourceRef::new(BUNDLE_KIND, "home", "app");
    let on = BTreeMap::from([("on".to_owned(), "yes".to_owned())]);
    let mut index = index(0);
    index.set_scope(WatchScope::everywhere(BUNDLE_KIND), ScopeState::Known);
    let entry = json!({"resources": [BUNDLE_KIND], "selector": {"matchLabels": {"on": "yes"}}});
    index.set_rule(rule(&[], &json!({"sources": [entry]})));
    index.set_source(app.clone(), on.clone(), Some(bundled(&app, &["a", "b"])));
    let planned = |bundle: &SourceRef, to: Option<(BTreeMap<String, String>, SourceState)>| {
        let labels = to.as_ref().map(|(labels, _)| labels.clone());
        let uids = index.selecting(bundle, &labels.unwrap_or_default());
        let changed = ChangedObject::Bundle(bundle.clone(), to);
        let mut preview = PreviewIndex::of_change(index.around(&uids, None), changed, &uids)?;
        let holds = |_: &RuleUid, _: &ClusterName| {
            Some(crate::index::ReportedCopies {
                copies: 2,
                intents: 2,
                ..Default::default()
            })
        };
        preview.judge(&holds, now());
        assert_eq!(preview.clusters(&holds).len(), 2);
        let (asked, _) = ask(&preview, "one", false);
        let names = asked.intents.iter().map(|one| &one.intent.source.name);
        let names: Vec<String> = names.map(ToString::to_string).collect();
        Some((names.join(" "), asked.tombstones.len()))
    };
    let with = |names: &[&str]| Some((on.clone(), bundled(&app, names)));
    assert_eq!(planned(&app, with(&["b", "c"])), Some(("b c".into(), 1)));
    assert_eq!(planned(&app, None), Some((String::new(), 2)));
    let deselected = Some((BTreeMap::new(), bundled(&app, &["a", "b"])));
    assert_eq!(planned(&app, deselected.clone()), Some((String::new(), 2)));
    let other = SourceRef::new(BUNDLE_KIND, "home", "other");
    let new = Some((on.clone(), bundled(&other, &["c"])));
    assert_eq!(planned(&other, new), Some(("a b c".into(), 0)));
    assert_eq!(planned(&other, deselected), None, "no rule selects it");
}
