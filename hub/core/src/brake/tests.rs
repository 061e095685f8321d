//! Random edits of everything that decides what goes where, against agents that do what they are told: nothing above the
//! limit ever goes, or is overwritten, without its digest, and with it exactly that.
mod away;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use runnel_proto::model::{Asked, AskedDigest, ClusterName, Content, Payload, Revision, RuleUid, SourceRef};
use serde_json::json;

use super::{Brake, Cause, Circumstances, Item, Limit, WINDOW, Waiting};
use crate::index::{Cluster, Directive, Effect, Holding, Index, PlaceState};
use crate::plan::{ClusterAssignment, Rule, RuleGrant, SourceContent, SourceState, UnsupportedSource, WatchScope};
use runnel_api::{self, RemovalStatus};

const SOURCES: u64 = 24;
const CLUSTERS: u64 = 5;
const RULES: u64 = 2;
const GRACE: Duration = Duration::from_secs(5);

/// Small numbers from a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

type Copies = BTreeSet<(ClusterName, SourceRef)>;
/// Objects that are not Runnel's and stand where copies of a rule should.
type Foreign = BTreeMap<(RuleUid, ClusterName), BTreeSet<u64>>;

/// How an agent names them.
fn digest(objects: &BTreeSet<u64>) -> AskedDigest {
    let mix =
        |sum: u128, object: &u64| (sum ^ u128::from(*object)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    AskedDigest(objects.iter().fold(7, mix).to_be_bytes())
}

/// One rule as it is written.
#[derive(Clone)]
struct Draft {
    spec: serde_json::Value,
    generation: i64,
    release: Option<String>,
    removal: Option<RemovalStatus>,
    takeovers: Option<RemovalStatus>,
    deleting: bool,
}

struct World {
    index: Index,
    drafts: BTreeMap<RuleUid, Draft>,
    /// What each cluster really holds.
    held: BTreeMap<RuleUid, Copies>,
    /// Clusters whose agents have connected to this process.
    connected: BTreeSet<ClusterName>,
    now: Instant,
    /// Indirect removals, per rule, with the number of copies that there were.
    spent: BTreeMap<RuleUid, Vec<(Instant, u64)>>,
    /// Sources that were deleted on purpose.
    deleted: BTreeSet<SourceRef>,
    /// The clusters that each rule chose when it was last looked at.
    chosen: BTreeMap<RuleUid, BTreeSet<ClusterName>>,
    /// What was released, while it is not wanted again.
    released: BTreeMap<RuleUid, Copies>,
    removals: u64,
    holds: u64,
    releases: u64,
    foreign: Foreign,
    /// What was named last.
    objects: u64,
    /// What each digest stood for when it was shown first.
    named: BTreeMap<String, BTreeSet<u64>>,
    /// What was held when the statuses were last written.
    held_objects: BTreeMap<RuleUid, BTreeSet<u64>>,
    /// What was permitted without a release.
    spent_takeovers: BTreeMap<RuleUid, Vec<(Instant, u64)>>,
    /// How many objects were overwritten: within the limit, and released.
    overwritten: (u64, u64),
}

fn source(number: u64) -> SourceRef {
    SourceRef::new("configmaps", "a", &format!("s{number}"))
}

fn cluster_name(number: u64) -> ClusterName {
    format!("c{number}").into()
}

fn content() -> SourceState {
    let payload = Payload::encode(Content::default().to_bytes());
    SourceState::Read(SourceContent::new(Revision([1; 16]), payload).into())
}

/// Everything, in all clusters or in some of them; or nothing that these rules send.
fn granted(which: u64) -> BTreeMap<String, RuleGrant> {
    let clusters = match which {
        0 => json!({"all": true}),
        which => json!({"selector": {"matchLabels": {"env": format!("v{}", which - 1)}}}),
    };
    granted_with(&[if which < 3 { "configmaps" } else { "secrets" }], clusters)
}

fn granted_with(kinds: &[&str], clusters: serde_json::Value) -> BTreeMap<String, RuleGrant> {
    let object = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionGrant", "metadata": {"name": "g"},
        "spec": {"rules": {"namespaces": {"all": true}}, "resources": kinds, "clusters": clusters, "namespaces": {"all": true}},
    });
    BTreeMap::from([("g".to_owned(), RuleGrant::read(&serde_json::from_value(object).unwrap()))])
}

fn labels(key: &str, value: u64) -> BTreeMap<String, String> {
    BTreeMap::from([(key.to_owned(), format!("v{value}"))])
}

impl World {
    fn new() -> Self {
        let mut index = Index::new();
        index.set_place(WatchScope::everywhere("configmaps"), PlaceState::Known);
        index.set_hub_namespaces(Some(BTreeMap::from([("a".to_owned(), BTreeMap::new())])));
        index.set_grants(Some(granted(0)));
        let mut world = Self {
            index,
            drafts: BTreeMap::new(),
            held: BTreeMap::new(),
            connected: (0..CLUSTERS).map(cluster_name).collect(),
            now: Instant::now(),
            spent: BTreeMap::new(),
            deleted: BTreeSet::new(),
            chosen: BTreeMap::new(),
            released: BTreeMap::new(),
            removals: 0,
            holds: 0,
            releases: 0,
            foreign: Foreign::new(),
            objects: 0,
            named: BTreeMap::new(),
            held_objects: BTreeMap::new(),
            spent_takeovers: BTreeMap::new(),
            overwritten: (0, 0),
        };
        for number in 0..SOURCES {
            world.change(|index| index.set_source(source(number), labels("team", 0), Some(content())));
        }
        for number in 0..CLUSTERS {
            world.set_cluster(number, 0);
        }
        for number in 0..RULES {
            let uid = RuleUid::from(format!("r{number}"));
            let draft = Draft {
                spec: json!({
                    "sources": [{"resources": ["configmaps"], "selector": {"matchLabels": {"team": "v0"}}}],
                    // What another rule wants as well would not go.
                    "clusters": {"all": true}, "namespaces": {"names": [format!("n{number}")]},
                    "conflictPolicy": "Overwrite",
                }),
                generation: 1,
                release: None,
                removal: None,
                takeovers: None,
                deleting: false,
            };
            world.drafts.insert(uid.clone(), draft);
            world.write(&uid);
        }
        world
    }

    fn rule(&self, uid: &RuleUid) -> Rule {
        let draft = &self.drafts[uid];
        let mut object = json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
            "metadata": {"name": uid.as_str(), "namespace": "a", "uid": uid.as_str(), "generation": draft.generation},
            "spec": draft.spec, "status": {"removal": draft.removal, "takeovers": draft.takeovers},
        });
        if let Some(release) = &draft.release {
            object["metadata"]["annotations"] = json!({"runnel.dev/release": release});
        }
        if draft.deleting {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        let object: runnel_api::DistributionRule = serde_json::from_value(object).unwrap();
        Rule::namespaced(&object, "runnel-system").unwrap()
    }

    fn write(&mut self, uid: &RuleUid) {
        let rule = self.rule(uid);
        self.change(|index| index.set_rule(rule));
    }

    fn set_cluster(&mut self, number: u64, env: u64) {
        let cluster = Cluster {
            uid: "u".into(),
            labels: labels("env", env),
            accepted: true,
            was_connected: true,
            ..Cluster::default()
        };
        self.change(|index| index.set_cluster(cluster_name(number), cluster));
    }

    /// An agent is connected to this process, and says what it holds.
    fn connect(&mut self, cluster: ClusterName) {
        let holds = |held: &Copies| held.iter().any(|(name, _)| *name == cluster);
        let rules = self.held.iter().filter(|(_, held)| holds(held)).map(|(uid, _)| uid.clone()).collect();
        let effect = self.index.holds_only(&cluster, &rules);
        self.connected.insert(cluster);
        self.judge(effect);
    }

    /// What agents last said.
    fn holding(held: &BTreeMap<RuleUid, Copies>, foreign: &Foreign, uid: &RuleUid, cluster: &ClusterName) -> Holding {
        let copies = held.get(uid).into_iter().flatten().filter(|(name, _)| name == cluster).count() as u64;
        let objects = foreign.get(&(uid.clone(), cluster.clone())).filter(|objects| !objects.is_empty());
        let takeovers = objects.map(|all| Asked { objects: u32::try_from(all.len()).unwrap(), digest: digest(all) });
        Holding { copies, intents: copies, takeovers, given_up: None }
    }

    fn change(&mut self, change: impl FnOnce(&mut Index) -> Effect) {
        let mut effect = change(&mut self.index);
        for source in std::mem::take(&mut effect.read) {
            let labels = self.index.source(&source).map(|known| known.labels.clone()).unwrap_or_default();
            effect.merge(self.index.set_source(source, labels, Some(content())));
        }
        self.judge(effect);
    }

    fn judge(&mut self, effect: Effect) {
        for uid in effect.judge {
            let before = self.permitted(&uid);
            let (held, foreign, connected) = (&self.held, &self.foreign, &self.connected);
            let said = |uid: &RuleUid, cluster: &ClusterName| {
                connected.contains(cluster).then(|| Self::holding(held, foreign, uid, cluster))
            };
            self.index.judge(&uid, &said, self.now);
            let new = self.permitted(&uid).difference(&before).copied().collect();
            self.account_takeovers(&uid, &new);
        }
    }

    /// The objects that agents may overwrite.
    fn permitted(&self, uid: &RuleUid) -> BTreeSet<u64> {
        let Some(entry) = self.index.rule(uid) else { return BTreeSet::new() };
        let own = self.foreign.iter().filter(|((rule, _), _)| rule == uid);
        let named = own.filter(|((_, cluster), all)| entry.brake.judged().permit(cluster) == Some(digest(all)));
        named.flat_map(|(_, all)| all).copied().collect()
    }

    /// Checks that no more may be overwritten than the limit allows, but for what was shown and released.
    fn account_takeovers(&mut self, uid: &RuleUid, new: &BTreeSet<u64>) {
        if new.is_empty() {
            return;
        }
        let objects = new.len() as u64;
        let release = self.drafts[uid].release.clone().unwrap_or_default();
        if let Some(digest) = release.split(',').find(|digest| self.named.get(*digest) == Some(new)) {
            self.named.remove(digest);
            self.held_objects.remove(uid);
            self.overwritten.1 += objects;
            return;
        }
        let held = self.held_objects.get(uid).into_iter().flatten().filter(|object| new.contains(*object));
        assert_eq!(held.count(), 0, "{uid}: what was held passed without a release");
        let spent = self.spent_takeovers.entry(uid.clone()).or_default();
        spent.retain(|(at, _)| self.now.saturating_duration_since(*at) < WINDOW);
        let before: u64 = spent.iter().map(|(_, objects)| objects).sum();
        let copies = self.held.get(uid).map_or(0, BTreeSet::len) as u64;
        assert!(Limit::default().allows(before + objects, copies), "{uid}: {objects} objects, and {before} before");
        spent.push((self.now, objects));
        self.overwritten.0 += objects;
    }

    /// An agent says what waits to be overwritten.
    fn ask(&mut self, uid: &RuleUid, cluster: &ClusterName) {
        let asked = Self::holding(&self.held, &self.foreign, uid, cluster);
        if self.index.asks_anew(uid, cluster, asked) {
            self.judge(Effect { judge: BTreeSet::from([uid.clone()]), ..Effect::default() });
        }
    }

    /// An agent overwrites what it was told, if that is what waits.
    fn overwrite(&mut self, uid: &RuleUid, cluster: &ClusterName, permit: Option<AskedDigest>) {
        let Some(objects) = self.foreign.get_mut(&(uid.clone(), cluster.clone())) else { return };
        if permit == Some(digest(objects)) {
            objects.clear();
            self.ask(uid, cluster);
        }
    }

    /// Every connected agent does what it is told; strays are judged, and done again. Returns what went, by rule.
    fn follow(&mut self) -> BTreeMap<RuleUid, Copies> {
        let before = self.held.clone();
        for _ in 0..2 {
            for cluster in self.connected.clone() {
                for uid in self.drafts.keys().cloned().collect::<Vec<_>>() {
                    self.follow_one(&uid, &cluster);
                }
            }
        }
        let gone = |uid: &RuleUid, copies: &Copies| {
            let left = self.held.get(uid);
            copies.iter().filter(|copy| left.is_none_or(|left| !left.contains(*copy))).cloned().collect::<Copies>()
        };
        before.iter().map(|(uid, copies)| (uid.clone(), gone(uid, copies))).collect()
    }

    fn follow_one(&mut self, uid: &RuleUid, cluster: &ClusterName) {
        self.ask(uid, cluster);
        let held = self.held.entry(uid.clone()).or_default();
        let own: Vec<_> = held.iter().filter(|(name, _)| name == cluster).cloned().collect();
        let effect = match self.index.directive(uid, cluster) {
            Directive::Wanted(assignment) => {
                let permit = assignment.permit();
                held.extend(assignment.intents().map(|(source, _)| (cluster.clone(), source.clone())));
                let surplus: Vec<_> = own.iter().filter(|(_, source)| assignment.content(source).is_none()).collect();
                for copy in surplus.iter().filter(|(_, source)| !assignment.must_stay(source)) {
                    held.remove(*copy);
                }
                let orphaned_intents: BTreeSet<_> =
                    surplus.iter().filter(|(_, s)| assignment.is_unjudged(s)).map(|(_, s)| s.clone()).collect();
                self.overwrite(uid, cluster, permit);
                if orphaned_intents.is_empty() {
                    Effect::default()
                } else {
                    self.index.orphaned_intents(uid, cluster, orphaned_intents)
                }
            }
            Directive::Unwanted(_) => {
                own.iter().for_each(|copy| _ = held.remove(copy));
                Effect::default()
            }
            Directive::RemovalBlocked if !own.is_empty() => self.index.orphaned_cluster(uid, cluster),
            Directive::Suspended(_) | Directive::Cordoned(_) | Directive::AwaitingWave(_) => {
                unreachable!("nothing is suspended, cordoned or rolled out")
            }
            Directive::RemovalBlocked | Directive::Unknown | Directive::Orphaned => Effect::default(),
        };
        self.judge(effect);
    }

    /// Writes down in the statuses what the brakes remember.
    fn persist(&mut self) {
        let (held, foreign, connected) = (&self.held, &self.foreign, &self.connected);
        let said = |uid: &RuleUid, cluster: &ClusterName| {
            connected.contains(cluster).then(|| Self::holding(held, foreign, uid, cluster))
        };
        for (uid, draft) in &mut self.drafts {
            draft.removal = self.index.brake_of(uid, &said).0.map(Into::into);
            let memory = self.index.takeovers_of(uid).map(|held| held.memory);
            draft.takeovers = memory.clone().map(Into::into);
            let waiting = self.index.rule(uid).unwrap().brake.takeovers().held().keys();
            let objects = waiting.filter_map(|cluster| self.foreign.get(&(uid.clone(), cluster.clone()))).flatten();
            let objects: BTreeSet<_> = objects.copied().collect();
            match memory.filter(|memory| !memory.released) {
                Some(memory) => {
                    self.named.entry(memory.digest).or_insert_with(|| objects.clone());
                    self.held_objects.entry(uid.clone()).or_default().extend(objects);
                }
                None => drop(self.held_objects.remove(uid)),
            }
        }
    }

    /// What releases all that is shown to be held of a rule.
    fn all_digests(&self, uid: &RuleUid) -> Option<String> {
        let draft = &self.drafts[uid];
        let held = draft.removal.iter().chain(&draft.takeovers).filter(|held| !held.released);
        let digests: Vec<_> = held.map(|held| held.digest.clone()).collect();
        (!digests.is_empty()).then(|| digests.join(","))
    }

    fn digest(&self, uid: &RuleUid) -> Option<String> {
        self.drafts[uid].removal.clone().filter(|removal| !removal.released).map(|removal| removal.digest)
    }

    /// Another process takes over; agents come back to it one after another.
    fn restart(&mut self) {
        self.persist();
        for uid in self.drafts.keys().cloned().collect::<Vec<_>>() {
            let rule = self.rule(&uid);
            self.index.set_rule(rule);
        }
        self.index.reset_removal_guards();
        // A new process knows what is held, not what went a moment ago.
        self.spent.clear();
        self.spent_takeovers.clear();
        let all: BTreeSet<_> = self.index.rules().map(|(uid, _)| uid.clone()).collect();
        self.connected.clear();
        self.judge(Effect { judge: all, ..Effect::default() });
    }

    /// What a rule wants.
    fn wanted(&self, uid: &RuleUid) -> Copies {
        let entry = self.index.rule(uid).unwrap();
        let assignments = entry.target_clusters.clusters.keys().filter_map(|cluster| entry.assignment(cluster));
        let copies = |assignment: ClusterAssignment| {
            let sent = |source: &&SourceRef| assignment.terms.grants_kind(&source.resource);
            assignment
                .plan
                .wanted()
                .filter(sent)
                .map(|source| (assignment.cluster.clone(), source.clone()))
                .collect::<Vec<_>>()
        };
        assignments.flat_map(copies).collect()
    }

    /// From now on what is held and not wanted may go.
    fn note_release(&mut self, uid: &RuleUid) {
        let wanted = self.wanted(uid);
        let surplus: Vec<_> = self.held[uid].difference(&wanted).cloned().collect();
        self.released.entry(uid.clone()).or_default().extend(surplus);
        self.releases += 1;
    }

    /// Checks that no more went than may.
    fn account(&mut self, gone: &BTreeMap<RuleUid, Copies>) {
        for (uid, gone) in gone {
            let wanted = self.wanted(uid);
            let released = self.released.entry(uid.clone()).or_default();
            released.retain(|copy| !wanted.contains(copy));
            // What went elsewhere long ago goes where the rule comes back to.
            let now: BTreeSet<_> = self.index.rule(uid).unwrap().target_clusters.clusters.keys().cloned().collect();
            let before = self.chosen.insert(uid.clone(), now.clone()).unwrap_or_default();
            let came = |cluster: &ClusterName| now.contains(cluster) && !before.contains(cluster);
            let indirect = gone
                .iter()
                .filter(|copy| !came(&copy.0) && !self.deleted.contains(&copy.1.plain()) && !released.contains(*copy));
            let indirect = indirect.count() as u64;
            if indirect == 0 {
                continue;
            }
            let spent = self.spent.entry(uid.clone()).or_default();
            spent.retain(|(at, _)| self.now.saturating_duration_since(*at) < WINDOW);
            let before: u64 = spent.iter().map(|(_, copies)| copies).sum();
            let all = self.held.get(uid).map_or(0, BTreeSet::len) as u64 + gone.len() as u64 + before;
            let allowed = Limit::default().allows(before + indirect, all);
            assert!(allowed, "{uid}: {indirect} copies of {all} went, and {before} before");
            spent.push((self.now, indirect));
            self.removals += 1;
        }
    }
}

/// One random edit.
fn edit(world: &mut World, dice: &mut Dice) {
    let uid = RuleUid::from(format!("r{}", dice.roll(RULES)));
    world.now += Duration::from_secs([1, 1, 10, 90][dice.roll(4) as usize]);
    match dice.roll(19) {
        0 => respec(world, &uid, "sources", selector(dice)),
        1 | 2 => respec(world, &uid, "clusters", choice(dice)),
        3 | 4 => {
            let (number, value) = (dice.roll(SOURCES), dice.roll(2));
            world.change(|index| index.set_source(source(number), labels("team", value), Some(content())));
        }
        5 => {
            let value = dice.roll(2);
            for number in 0..dice.roll(SOURCES) {
                world.change(|index| index.set_source(source(number), labels("team", value), Some(content())));
            }
        }
        6 => world.set_cluster(dice.roll(CLUSTERS), dice.roll(2)),
        7 => {
            // One deliberate deletion, after a quiet minute.
            world.now += WINDOW;
            let gone = source(dice.roll(SOURCES));
            world.index.vanish_source(&gone, world.now);
            let now = world.now + GRACE;
            world.now = now;
            world.change(|index| index.expire_deleted(now, GRACE));
            world.deleted.insert(gone);
        }
        8 => {
            let gone: BTreeSet<_> = (0..dice.roll(SOURCES)).map(source).collect();
            for source in &gone {
                world.index.vanish_source(source, world.now);
            }
            // So many at once are not deliberate; what nobody distributes does not count.
            let counts = |source: &&SourceRef| world.index.rules().any(|(_, entry)| entry.plan.wants(source));
            if gone.iter().filter(counts).count() <= super::DELIBERATE {
                world.deleted.extend(gone);
            }
            world.now += GRACE;
            let now = world.now;
            world.change(|index| index.expire_deleted(now, GRACE));
        }
        9 => world.restart(),
        12 => {
            let grants = dice.roll(5);
            world.change(|index| index.set_grants((grants < 4).then(|| granted(grants))));
        }
        13 => {
            let name = ["${source.name}", "x-${source.name}", "${source.name}-${cluster.name}"][dice.roll(3) as usize];
            respec(world, &uid, "transform", json!({"name": name}));
        }
        10 => {
            world.persist();
            if let Some(digests) = world.all_digests(&uid) {
                world.drafts.get_mut(&uid).unwrap().release = Some(digests);
                if world.digest(&uid).is_some() {
                    world.note_release(&uid);
                }
                world.write(&uid);
            }
        }
        15 | 16 => {
            // Somebody makes objects of his own, which agents find; or takes some away.
            let cluster = cluster_name(dice.roll(CLUSTERS));
            let (make, number) = (dice.roll(3) > 0, dice.roll(16));
            let first = world.objects;
            world.objects += number;
            let objects = world.foreign.entry((uid, cluster)).or_default();
            if make { objects.extend(first..first + number) } else { (0..number).for_each(|_| _ = objects.pop_first()) }
        }
        11 | 14 => world.connect(cluster_name(dice.roll(CLUSTERS))),
        17 => {
            let policy = ["Overwrite", "Overwrite", "Fail"][dice.roll(3) as usize];
            respec(world, &uid, "conflictPolicy", json!(policy));
        }
        _ => {
            // A digest that fits nothing, or an old one.
            let digest = world.drafts[&uid].release.clone().unwrap_or_else(|| "0123456789".to_owned());
            world.drafts.get_mut(&uid).unwrap().release = Some(digest);
            world.write(&uid);
        }
    }
    let index = &world.index;
    world.deleted.retain(|source| index.source(source).is_none());
}

fn respec(world: &mut World, uid: &RuleUid, field: &str, value: serde_json::Value) {
    let draft = world.drafts.get_mut(uid).unwrap();
    draft.spec[field] = value;
    draft.generation += 1;
    world.write(uid);
}

fn selector(dice: &mut Dice) -> serde_json::Value {
    let entry = match dice.roll(4) {
        0 => json!({"resources": ["configmaps"], "names": ["*"]}),
        1 => json!({"resources": ["configmaps"], "names": ["s1*"]}),
        value => json!({"resources": ["configmaps"], "selector": {"matchLabels": {"team": format!("v{}", value - 2)}}}),
    };
    json!([entry])
}

fn choice(dice: &mut Dice) -> serde_json::Value {
    match dice.roll(4) {
        0 | 1 => json!({"all": true}),
        value => json!({"selector": {"matchLabels": {"env": format!("v{}", value - 2)}}}),
    }
}

#[test]
fn random_edits_never_remove_more_than_the_limit() {
    let (mut removals, mut holds, mut releases, mut overwritten, mut held) = (0, 0, 0, (0, 0), 0);
    for seed in 0..100 {
        let (mut world, mut dice) = (World::new(), Dice(seed));
        world.follow();
        for _ in 0..100 {
            edit(&mut world, &mut dice);
            // After a restart agents come back one by one, and some of them later.
            let rounds = if world.connected.is_empty() { 2 + dice.roll(CLUSTERS - 1) } else { 1 };
            for number in 0..rounds {
                world.connect(cluster_name((number + seed) % CLUSTERS));
                let gone = world.follow();
                world.account(&gone);
                world.persist();
            }
            let holds = |draft: &&Draft| draft.takeovers.as_ref().is_some_and(|held| !held.released);
            held += world.drafts.values().filter(holds).count();
            world.holds += world.drafts.keys().filter(|uid| world.digest(uid).is_some()).count() as u64;
        }
        settle_all(&mut world);
        (removals, holds, releases) = (removals + world.removals, holds + world.holds, releases + world.releases);
        overwritten = (overwritten.0 + world.overwritten.0, overwritten.1 + world.overwritten.1);
    }
    let (within, released) = overwritten;
    println!("{removals} removals within the limit, {holds} holds, {releases} releases");
    println!("{within} objects overwritten within the limit, {released} by a release, {held} holds");
    assert!(within > 2000 && released > 1500 && held > 800, "{within} overwritten, {released} released, {held} held");
    assert!(removals > 200 && holds > 8000 && releases > 200, "{removals} removals, {holds} held, {releases} released");
}

/// Whatever is held can be released by the digest that is shown, and then every agent has what is wanted.
fn settle_all(world: &mut World) {
    (0..CLUSTERS).for_each(|number| world.connect(cluster_name(number)));
    // While nobody can tell what is granted, nothing goes.
    world.change(|index| index.set_grants(Some(granted(0))));
    for uid in world.drafts.keys().cloned().collect::<Vec<_>>() {
        respec(world, &uid, "conflictPolicy", json!("Overwrite"));
    }
    for _ in 0..4 {
        world.now += 2 * WINDOW;
        world.follow();
        // Everybody has said what he holds.
        for uid in world.drafts.keys() {
            world.index.settle_brake(uid, &BTreeSet::new());
        }
        world.persist();
        for uid in world.drafts.keys().cloned().collect::<Vec<_>>() {
            let Some(digests) = world.all_digests(&uid) else { continue };
            world.drafts.get_mut(&uid).unwrap().release = Some(digests);
            world.write(&uid);
        }
    }
    world.follow();
    for ((uid, cluster), objects) in &world.foreign {
        let is_target = world.index.rule(uid).unwrap().target_clusters.clusters.contains_key(cluster);
        assert!(objects.is_empty() || !is_target, "{uid} in {cluster}: {objects:?} wait for ever");
    }
    for uid in world.drafts.keys() {
        let wanted = world.wanted(uid);
        let more: Vec<_> = world.held[uid].difference(&wanted).take(5).collect();
        assert!(more.is_empty() && world.held[uid].len() == wanted.len(), "{uid}: {more:?}");
        assert!(!world.index.is_held(uid), "{uid} holds something that nobody can release");
    }
}

#[test]
fn approval_covers_exactly_its_set() {
    let mut world = World::new();
    world.follow();
    let uid = RuleUid::from("r0");
    respec(&mut world, &uid, "clusters", json!({"names": ["c0", "c1", "c2"]}));
    assert!(world.follow()[&uid].is_empty());
    world.persist();
    let first = world.digest(&uid).unwrap();
    assert_eq!(world.drafts[&uid].removal.as_ref().unwrap().copies, 2 * 24);

    // It grows before anybody has released it: the digest is another one, and the former releases nothing.
    respec(&mut world, &uid, "clusters", json!({"names": ["c0", "c1"], "exclude": ["c9"]}));
    world.drafts.get_mut(&uid).unwrap().release = Some(first.clone());
    world.write(&uid);
    assert!(world.follow()[&uid].is_empty());
    world.persist();
    let second = world.digest(&uid).unwrap();
    assert_ne!(first, second);

    world.drafts.get_mut(&uid).unwrap().release = Some(second.clone());
    world.write(&uid);
    // One of the three is away, and comes back to another process of the hub.
    world.connected.remove(&cluster_name(4));
    assert_eq!(world.follow()[&uid].len(), 2 * 24);
    world.restart();
    world.connected = (0..CLUSTERS).map(cluster_name).collect();
    assert_eq!(world.follow()[&uid].len(), 24);
    world.persist();
    assert_eq!(world.digest(&uid), None);

    // The same mistake again is another removal.
    respec(&mut world, &uid, "clusters", json!({"all": true}));
    world.follow();
    respec(&mut world, &uid, "clusters", json!({"names": ["c0", "c1"]}));
    assert!(world.follow()[&uid].is_empty());
    world.persist();
    assert!(![first, second].contains(&world.digest(&uid).unwrap()));

    // Undone, nothing is held.
    respec(&mut world, &uid, "clusters", json!({"all": true}));
    world.persist();
    assert_eq!(world.digest(&uid), None);
    assert!(!world.index.is_held(&uid));
}

#[test]
fn blocked_set_stays_blocked_after_a_restart() {
    let mut world = World::new();
    world.follow();
    let uid = RuleUid::from("r0");
    respec(&mut world, &uid, "sources", json!([{"resources": ["configmaps"], "names": ["s1"]}]));
    assert!(world.follow()[&uid].is_empty());
    world.restart();
    let digest = world.digest(&uid).unwrap();
    for number in 0..CLUSTERS {
        world.connect(cluster_name(number));
        assert!(world.follow()[&uid].is_empty(), "cluster {number}");
        world.persist();
        assert_eq!(world.digest(&uid).as_ref(), Some(&digest));
    }
    world.drafts.get_mut(&uid).unwrap().release = Some(digest);
    world.write(&uid);
    assert_eq!(world.follow()[&uid].len(), 23 * 5);

    // Nobody has seen this edit happen.
    let other = RuleUid::from("r1");
    let draft = world.drafts.get_mut(&other).unwrap();
    draft.spec["sources"] = json!([{"resources": ["configmaps"], "names": ["s2"]}]);
    draft.generation += 1;
    world.restart();
    world.connected = (0..CLUSTERS).map(cluster_name).collect();
    assert!(world.follow()[&other].is_empty());
    world.persist();
    assert_eq!(world.drafts[&other].removal.as_ref().unwrap().copies, 23 * 5);
}

#[test]
fn deliberate_acts_pass_and_too_many_of_them_do_not() {
    let mut world = World::new();
    world.follow();
    let (uid, other) = (RuleUid::from("r0"), RuleUid::from("r1"));
    let names: Vec<_> = (0..SOURCES).map(|number| format!("s{number}")).collect();
    respec(&mut world, &uid, "sources", json!([{"resources": ["configmaps"], "names": names}]));
    respec(&mut world, &uid, "clusters", json!({"names": ["c0", "c1", "c2", "c3", "c4"]}));
    world.follow();
    // A literal name out of a list, of sources and of clusters.
    respec(&mut world, &uid, "clusters", json!({"names": ["c0", "c1", "c2", "c3"]}));
    assert_eq!(world.follow()[&uid].len(), 24);
    respec(&mut world, &uid, "sources", json!([{"resources": ["configmaps"], "names": names[..20]}]));
    assert_eq!(world.follow()[&uid].len(), 4 * 4);
    respec(&mut world, &uid, "sources", json!([{"resources": ["configmaps"], "names": names[..5]}]));
    assert!(world.follow()[&uid].is_empty(), "fifteen names at once are a mistake");

    // The delete of a rule passes; with its namespace it does not.
    let delete = |world: &mut World, uid: &RuleUid| {
        world.drafts.get_mut(uid).unwrap().deleting = true;
        world.write(uid);
        let (due, uid) = world.index.next_judgement().unwrap();
        world.now = due;
        world.judge(Effect { judge: [uid.clone()].into(), ..Effect::default() });
        world.follow()[&uid].len()
    };
    world.now += WINDOW;
    world.index.set_dying("a", true);
    assert_eq!(delete(&mut world, &other), 0);
    assert!(!world.index.may_go(&other));
    world.persist();
    let digest = world.digest(&other);
    world.drafts.get_mut(&other).unwrap().release = digest;
    world.write(&other);
    assert_eq!(world.follow()[&other].len(), 24 * 5);
    assert!(world.index.may_go(&other));
    world.index.set_dying("a", false);
    let left = world.held[&uid].len();
    assert_eq!(delete(&mut world, &uid), left);
}

#[test]
fn wanted_copies_transfer_and_ungranted_kinds_are_blocked() {
    let mut world = World::new();
    world.follow();
    let (uid, other) = (RuleUid::from("r0"), RuleUid::from("r1"));
    // Both want the same copies now.
    respec(&mut world, &other, "namespaces", json!({"names": ["n0"]}));
    respec(&mut world, &uid, "sources", json!([{"resources": ["configmaps"], "names": ["nothing"]}]));
    assert_eq!(world.follow()[&uid].len(), 24 * 5, "nothing would be missing anywhere");
    // Nobody else wants them any more.
    respec(&mut world, &other, "sources", json!([{"resources": ["configmaps"], "names": ["nothing"]}]));
    assert!(world.follow()[&other].is_empty());
    respec(&mut world, &other, "sources", json!([{"resources": ["configmaps", "secrets"], "names": ["s*"]}]));
    world.follow();
    world.persist();
    assert_eq!(world.digest(&other), None);

    // Another kind is granted instead: one set, everywhere.
    world.now += WINDOW;
    world.change(|index| index.set_grants(Some(granted(3))));
    assert!(world.follow()[&other].is_empty());
    world.change(|index| index.set_grants(Some(granted(0))));
    world.persist();
    assert_eq!(world.digest(&other), None, "granted again");
    let both = granted_with(&["secrets"], json!({"all": true}));
    world.change(|index| index.set_grants(Some(both)));
    assert!(world.follow()[&other].is_empty());
    world.persist();
    assert_eq!(world.drafts[&other].removal.as_ref().unwrap().copies, 24 * 5);
    let digest = world.digest(&other);
    world.drafts.get_mut(&other).unwrap().release = digest;
    world.write(&other);
    assert_eq!(world.follow()[&other].len(), 24 * 5);

    // A new name: the former copies are a removal, by cluster where names differ.
    world.change(|index| index.set_grants(Some(granted(0))));
    world.follow();
    for name in ["x-${source.name}", "${source.name}-${cluster.name}", "y-${source.name}"] {
        world.now += WINDOW;
        respec(&mut world, &other, "transform", json!({"name": name}));
        assert!(world.follow()[&other].is_empty(), "{name}");
        world.persist();
        assert_eq!(world.drafts[&other].removal.as_ref().unwrap().copies, 24 * 5, "{name}");
        let digest = world.digest(&other);
        world.drafts.get_mut(&other).unwrap().release = digest;
        world.write(&other);
        assert_eq!(world.follow()[&other].len(), 24 * 5, "{name}");
        assert_eq!(world.held[&other], world.wanted(&other));
    }
}

#[test]
fn retained_copies_are_not_blocked_and_not_deleted_later() {
    let mut world = World::new();
    world.follow();
    let uid = RuleUid::from("r0");
    let nothing = json!([{"resources": ["configmaps"], "names": ["nothing"]}]);
    respec(&mut world, &uid, "sources", nothing.clone());
    assert!(world.follow()[&uid].is_empty());
    respec(&mut world, &uid, "deletionPolicy", json!("Retain"));
    world.persist();
    assert_eq!(world.digest(&uid), None, "it would stay");
    // Nobody has heard of it yet.
    respec(&mut world, &uid, "deletionPolicy", json!("Delete"));
    assert!(world.follow()[&uid].is_empty());
    world.persist();
    assert_eq!(world.drafts[&uid].removal.as_ref().unwrap().copies, 24 * 5);
    respec(&mut world, &uid, "deletionPolicy", json!("Retain"));
    assert_eq!(world.follow()[&uid].len(), 24 * 5);
}

#[test]
fn too_many_refusing_sources_block_as_deleted_ones_do() {
    let mut world = World::new();
    world.follow();
    let uid = RuleUid::from("r0");
    for number in 0..SOURCES {
        let refused = Some(SourceState::Refused(UnsupportedSource::Annotation));
        world.change(|index| index.set_source(source(number), labels("team", 0), refused));
        world.follow();
    }
    // Ten by a deliberate act each, and two within the limit.
    assert_eq!(world.held[&uid].len(), 12 * 5);
    world.persist();
    assert!(world.digest(&uid).is_some());
}

#[test]
fn names_without_version_are_removed_and_other_versions_not() {
    let mut world = World::new();
    world.follow();
    let uid = RuleUid::from("r0");
    respec(&mut world, &uid, "transform", json!({"versionedName": {"keep": 3}}));
    assert!(world.follow()[&uid].is_empty());
    world.persist();
    assert_eq!(world.drafts[&uid].removal.as_ref().unwrap().copies, 24 * 5);
    let payload = Payload::encode(Content::default().to_bytes());
    let edited = SourceState::Read(SourceContent::new(Revision([2; 16]), payload).into());
    world.change(|index| index.set_source(source(0), labels("team", 0), Some(edited)));
    assert_eq!(world.follow()[&uid].len(), 5, "the former version");
    world.persist();
    let digest = world.digest(&uid);
    world.drafts.get_mut(&uid).unwrap().release = digest;
    world.write(&uid);
    assert_eq!(world.follow()[&uid].len(), 24 * 5);
    assert_eq!(world.held[&uid], world.wanted(&uid));
}

#[test]
fn what_passes_goes_however_much_did_before() {
    let known = Circumstances {
        uid: "r",
        limit: Limit::NONE,
        all: 0,
        weigh: &|items| items.len() as u64,
        doubtful: &|_| false,
        is_away: &|_| false,
        wanted: &String::new,
        release: None,
        takeovers: Some(Waiting::new()),
        takeovers_limit: Limit::default(),
        given_up: Some(Waiting::new()),
    };
    let (mut brake, now) = (Brake::default(), Instant::now());
    let mut passes = |items: &[Item]| {
        items.iter().for_each(|item| brake.remove(item.clone(), Cause::Indirect));
        brake.judge(&known, now);
        items.iter().all(|item| brake.judged().passes(item))
    };
    let many: Vec<_> = (0..30_000).map(|number| Item::Source(source(number))).collect();
    assert!(passes(&many));
    assert!(passes(&[Item::Source(SourceRef::new("secrets", "z", "last"))]));
}
