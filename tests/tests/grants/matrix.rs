//! Every combination of grants, rules and places, through the real index, the real session and the real agent's set; and
//! again after the grants have become others. Without any cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use runnel_agent_core::copy::IntentKey;
use runnel_agent_core::decide::{DesiredCopy, TargetNamespace};
use runnel_agent_core::desired::{AgentLocation, Desired, Namespace};
use runnel_agent_core::policy::Policy;
use runnel_agent_core::records::Records;
use runnel_api::{ClusterDistributionRule, DistributionRule};
use runnel_hub_core::guard::DELAY;
use runnel_hub_core::index::{Cluster, Effect, HubNamespace, Index, ScopeState};
use runnel_hub_core::now::Now;
use runnel_hub_core::plan::{RuleGrant, SourceContent, SourceState, WatchScope as Source};
use runnel_hub_core::session::Session;
use runnel_proto::model::{ClusterName, Content, Payload, Revision, RuleUid, SourceRef};
use serde_json::{Value, json};

use super::oracle::{Choice, Grant, LABEL, Rule, Thing};

const BOTH: &[&str] = &["configmaps", "secrets"];
const MAPS: &[&str] = &["configmaps"];
const SECRETS: &[&str] = &["secrets"];

const HOMES: [Thing; 3] = [
    thing("team-a", true),
    thing("team-b", false),
    thing("kube-team", true),
];
const CLUSTERS: [Thing; 2] = [thing("one", true), thing("two", false)];
const TARGETS: [Thing; 5] = [
    thing("t-1", true),
    thing("t-2", false),
    thing("team-a", false),
    thing("kube-public", true),
    Thing {
        exists: false,
        ..thing("new", true)
    },
];

const fn thing(name: &'static str, labeled: bool) -> Thing {
    Thing {
        name,
        labeled,
        exists: true,
    }
}

const WIDE: Grant = Grant {
    rules: Choice::All,
    kinds: BOTH,
    clusters: Choice::All,
    namespaces: Choice::All,
    creates: true,
};

/// Sets of grants, each also the target of narrowing or widening another.
fn sets() -> Vec<Vec<Grant>> {
    let team_a = Grant {
        rules: Choice::Names(&["team-a"]),
        ..WIDE
    };
    let narrow = [
        WIDE,
        Grant {
            creates: false,
            ..WIDE
        },
        Grant {
            rules: Choice::Names(&["team-*"]),
            kinds: MAPS,
            ..WIDE
        },
        Grant {
            rules: Choice::Label,
            kinds: SECRETS,
            creates: false,
            ..WIDE
        },
        Grant {
            clusters: Choice::Label,
            ..team_a
        },
        Grant {
            clusters: Choice::Names(&["two"]),
            namespaces: Choice::Names(&["t-*"]),
            ..WIDE
        },
        Grant {
            namespaces: Choice::Label,
            creates: false,
            ..team_a
        },
        Grant {
            namespaces: Choice::Names(&["t-1", "team-a", "new"]),
            kinds: MAPS,
            creates: false,
            ..WIDE
        },
        Grant {
            namespaces: Choice::Names(&["kube-public", "*"]),
            rules: Choice::Names(&["kube-team"]),
            ..WIDE
        },
    ];
    let mut sets = vec![vec![]];
    sets.extend(narrow.map(|grant| vec![grant]));
    for (number, one) in narrow.iter().enumerate().skip(2) {
        sets.push(vec![*one, narrow[2 + (number + 2) % 7]]);
    }
    sets
}

fn rules() -> Vec<Rule> {
    let targets = [
        None,
        Some(Choice::Names(&["t-1", "t-2"])),
        Some(Choice::Names(&["t-*", "kube-public", "new"])),
        Some(Choice::Label),
        Some(Choice::Names(&["*"])),
    ];
    let mut rules = vec![];
    for (cluster_scoped, home) in [false, true]
        .into_iter()
        .flat_map(|scoped| HOMES.map(|home| (scoped, home)))
    {
        for (kinds, clusters) in [
            (BOTH, Choice::All),
            (MAPS, Choice::Label),
            (SECRETS, Choice::Names(&["two"])),
        ] {
            for namespaces in targets {
                // Namespaces are created only for exact names.
                let creates = namespaces == targets[2];
                rules.push(Rule {
                    cluster_scoped,
                    home,
                    kinds,
                    clusters,
                    namespaces,
                    creates,
                });
            }
        }
    }
    rules
}

fn labels(thing: Thing) -> BTreeMap<String, String> {
    let label = thing
        .labeled
        .then(|| (LABEL.0.to_owned(), LABEL.1.to_owned()));
    label.into_iter().collect()
}

fn granted(grants: &[Grant]) -> BTreeMap<String, RuleGrant> {
    let read = |grant: &Grant| {
        let object = json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionGrant", "metadata": {"name": "g"},
            "spec": grant.spec(),
        });
        RuleGrant::read(&serde_json::from_value(object).expect("a grant"))
    };
    grants
        .iter()
        .enumerate()
        .map(|(number, grant)| (format!("grant-{number}"), read(grant)))
        .collect()
}

fn planned(rule: Rule) -> runnel_hub_core::plan::Rule {
    let mut object = rule.manifest("r");
    object["metadata"]["uid"] = json!("r");
    let read = |object: Value| {
        if rule.cluster_scoped {
            let object: ClusterDistributionRule = serde_json::from_value(object).expect("a rule");
            runnel_hub_core::plan::Rule::cluster_scoped(&object, "runnel-system")
        } else {
            let object: DistributionRule = serde_json::from_value(object).expect("a rule");
            runnel_hub_core::plan::Rule::namespaced(&object, "runnel-system")
        }
    };
    read(object).expect("a rule with a uid")
}

fn hub(rule: Rule, grants: &[Grant]) -> Index {
    let mut index = Index::default();
    index.set_grants(Some(granted(grants)));
    index.set_hub_namespace_states(Some(
        HOMES
            .map(|home| {
                let (labels, terminating) = (labels(home), false);
                (
                    home.name.to_owned(),
                    HubNamespace {
                        labels,
                        terminating,
                    },
                )
            })
            .into(),
    ));
    for cluster in CLUSTERS {
        let known = Cluster {
            uid: cluster.name.to_owned(),
            labels: labels(cluster),
            accepted: true,
            ..Cluster::default()
        };
        index.set_cluster(cluster.name.into(), known);
    }
    index.set_rule(planned(rule));
    for kind in BOTH {
        index.set_scope(Source::everywhere(*kind), ScopeState::Known);
        for home in HOMES {
            let payload = Payload::encode(Content::default().to_bytes());
            let content = SourceContent::new(Revision([1; 16]), payload);
            let source = SourceRef::new(kind, home.name, "item-1");
            index.set_source(
                source,
                BTreeMap::new(),
                Some(SourceState::Read(Arc::new(content))),
            );
        }
    }
    index
}

/// The guard passes this few removals after their delay.
fn judge(index: &mut Index, effect: Effect) {
    let begin = Instant::now();
    for instant in [begin, begin + DELAY] {
        let now = Now {
            instant,
            wall: jiff::Timestamp::UNIX_EPOCH,
        };
        index.judge(&effect.judge, &|_, _| None, now);
    }
}

/// A member: its session and its agent's set.
struct Member {
    cluster: Thing,
    session: Session,
    desired: Desired,
    version: u64,
}

impl Member {
    fn new(cluster: Thing) -> Self {
        let home = AgentLocation {
            namespace: "runnel-system".into(),
            cluster_uid: cluster.name.into(),
        };
        let mut desired = Desired::new(home, Arc::new(Policy::open()));
        for target in TARGETS.iter().filter(|target| target.exists) {
            let namespace = Namespace {
                labels: labels(*target),
                ..Namespace::default()
            };
            desired.set_namespace(target.name, Some(namespace), &Records::default());
        }
        let mut session = Session::default();
        session.hello_done();
        Self {
            cluster,
            session,
            desired,
            version: 0,
        }
    }

    /// Applies its orders, and has its surplus copies judged.
    fn follow(&mut self, index: &mut Index) {
        let (uid, name) = (RuleUid::from("r"), ClusterName::from(self.cluster.name));
        for _ in 0..2 {
            self.apply(index);
            for (_, sources) in self.session.take_orphaned_intents() {
                let effect = if sources.is_empty() {
                    index.orphaned_cluster(&uid, &name)
                } else {
                    index.orphaned_intents(&uid, &name, sources)
                };
                judge(index, effect);
            }
        }
    }

    fn apply(&mut self, index: &Index) {
        let (claims, version) =
            index.directives_since(&ClusterName::from(self.cluster.name), self.version);
        self.version = version;
        self.session.update(claims);
        while let Some(batch) = self.session.next_batch() {
            let nonce = batch.nonce;
            self.desired.take(batch, vec![], &Records::default());
            self.session.ack(nonce);
            for gone in self.desired.rules_mut().take_finished(&BTreeSet::new()) {
                self.session.record_removed(&gone.uid, nonce);
            }
        }
    }

    /// Its copies, as `kind/namespace`, and whether the namespace is to be made.
    fn copies(&self) -> BTreeMap<String, bool> {
        let uid = RuleUid::from("r");
        let keys = self
            .desired
            .rules()
            .pairs(&uid)
            .into_iter()
            .map(|copies_there| IntentKey {
                rule: uid.clone(),
                source: copies_there.source,
            });
        let copies = keys.flat_map(|key| self.desired.owners().copies_of_intent(&key));
        copies
            .map(|copy| {
                let makes = matches!(
                    self.desired.owners().desired_copy(&copy, None),
                    DesiredCopy::Copy(wanted) if matches!(wanted.place, TargetNamespace::ToCreate(_))
                );
                (format!("{}/{}", copy.resource, copy.namespace), makes)
            })
            .collect()
    }

    fn expected(&self, rule: Rule, grants: &[Grant]) -> BTreeMap<String, bool> {
        let mut expected = BTreeMap::new();
        let own = Thing {
            exists: false,
            ..thing(rule.home.name, false)
        };
        let known = TARGETS.iter().any(|target| target.name == rule.home.name);
        let targets = TARGETS.into_iter().chain((!known).then_some(own));
        for (kind, target) in
            targets.flat_map(|target| BOTH.iter().map(move |kind| (*kind, target)))
        {
            let granted = |also: fn(&Grant) -> bool| {
                rule.is_granted(grants, kind, self.cluster, target, also)
            };
            if rule.wants(kind, self.cluster, target) && granted(|_| true) {
                let makes = !target.exists && rule.creates && granted(|grant| grant.creates);
                expected.insert(format!("{kind}/{}", target.name), makes);
            }
        }
        expected
    }
}

#[test]
fn copies_follow_grant_changes() {
    let (sets, mut cases, mut copies) = (sets(), 0, 0);
    for (number, rule) in rules().into_iter().enumerate() {
        for (first, grants) in sets.iter().enumerate() {
            let mut index = hub(rule, grants);
            let mut members = CLUSTERS.map(Member::new);
            let later = &sets[(first + number + 1) % sets.len()];
            for now in [grants, later, &vec![], grants] {
                let effect = index.set_grants(Some(granted(now)));
                judge(&mut index, effect);
                for member in &mut members {
                    member.follow(&mut index);
                    let (got, expected) = (member.copies(), member.expected(rule, now));
                    assert_eq!(
                        got, expected,
                        "{rule:?} in {} under {now:?}, before {grants:?}",
                        member.cluster.name
                    );
                    (cases, copies) = (cases + 1, copies + got.len());
                }
            }
            // While the grants are unknown, nothing is sent and nothing removed.
            let before: Vec<_> = members.iter().map(Member::copies).collect();
            index.set_grants(None);
            for (member, before) in members.iter_mut().zip(before) {
                member.follow(&mut index);
                let unchanged = member.copies() == before;
                assert!(
                    rule.cluster_scoped || unchanged,
                    "{rule:?} without knowledge, before {grants:?}"
                );
                cases += 1;
            }
        }
    }
    println!("{cases} cases, {copies} copies");
    assert!(
        cases > 10_000 && copies > 10_000,
        "{cases} cases, {copies} copies"
    );
}
