//! Random edits of what only agents see the end of: labels of namespaces, the choice of namespaces, grants. Agents hear of an
//! edit late and one after another, and remove exactly what is named to them: never more than the limit without the digest,
//! together with what the hub itself removes.
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use runnel_proto::model::{Asked, AskedDigest, ClusterName, SourceRef};

use super::{Brake, Cause, Circumstances, Item, Limit, Matter, Memory, WINDOW, Waiting};

const CLUSTERS: u64 = 4;
const NAMESPACES: u64 = 6;
const SOURCES: u64 = 3;

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// A copy: its namespace, its source, and which object it is.
type Copy = (u64, u64, u64);

/// A member with its agent.
#[derive(Default)]
struct Member {
    copies: BTreeSet<Copy>,
    labelled: BTreeSet<u64>,
    /// The namespaces that are chosen and granted, as the agent has heard.
    chosen: BTreeSet<u64>,
    sources: BTreeSet<u64>,
    connected: bool,
}

impl Member {
    fn given_up(&self) -> BTreeSet<Copy> {
        let stays = |(namespace, ..): &Copy| self.labelled.contains(namespace) && self.chosen.contains(namespace);
        self.copies.iter().filter(|copy| !stays(copy)).copied().collect()
    }

    fn asks(&self) -> Option<Asked> {
        let all = self.given_up();
        let objects = u32::try_from(all.len()).unwrap();
        (objects > 0).then(|| Asked { objects, digest: digest(&all) })
    }
}

fn digest(copies: &BTreeSet<Copy>) -> AskedDigest {
    let mix = |sum: u128, copy: &Copy| (sum ^ u128::from(copy.2)).wrapping_mul(0x0100_0000_0000_0000_0000_013b);
    AskedDigest(copies.iter().fold(7, mix).to_be_bytes())
}

fn source(number: u64) -> SourceRef {
    SourceRef::new("configmaps", "a", &format!("s{number}"))
}

struct World {
    brake: Brake,
    members: BTreeMap<ClusterName, Member>,
    chosen: BTreeSet<u64>,
    granted: BTreeSet<u64>,
    sources: BTreeSet<u64>,
    release: Option<String>,
    status: (Option<Memory>, Option<Memory>),
    now: Instant,
    objects: u64,
    /// What went without a release, and how many copies there were before.
    spent: Vec<(Instant, u64)>,
    /// What each digest stood for when it was shown.
    named: BTreeMap<String, BTreeSet<(ClusterName, AskedDigest)>>,
    removed: u64,
    released: u64,
    holds: u64,
}

impl World {
    fn new() -> Self {
        let all: BTreeSet<_> = (0..NAMESPACES).collect();
        let member = || Member { labelled: all.clone(), connected: true, ..Member::default() };
        let mut world = Self {
            brake: Brake::default(),
            members: (0..CLUSTERS).map(|number| (ClusterName::from(format!("c{number}")), member())).collect(),
            chosen: all.clone(),
            granted: all.clone(),
            sources: (0..SOURCES).collect(),
            release: None,
            status: (None, None),
            now: Instant::now(),
            objects: 0,
            spent: vec![],
            named: BTreeMap::new(),
            removed: 0,
            released: 0,
            holds: 0,
        };
        let names: Vec<_> = world.members.keys().cloned().collect();
        names.iter().for_each(|name| world.hear(name));
        world
    }

    /// An agent hears the terms, makes what is wanted and missing, and says what waits.
    fn hear(&mut self, name: &ClusterName) {
        let member = self.members.get_mut(name).unwrap();
        member.chosen = self.chosen.intersection(&self.granted).copied().collect();
        member.sources.clone_from(&self.sources);
        for namespace in member.chosen.intersection(&member.labelled) {
            for source in &member.sources {
                if !member.copies.iter().any(|copy| (copy.0, copy.1) == (*namespace, *source)) {
                    self.objects += 1;
                    member.copies.insert((*namespace, *source, self.objects));
                }
            }
        }
        self.report(name);
    }

    fn report(&mut self, name: &ClusterName) {
        let member = &self.members[name];
        if member.connected && self.brake.asks_anew(name, None, member.asks()) {
            self.judge();
        }
    }

    fn all(&self) -> u64 {
        self.members.values().map(|member| member.copies.len() as u64).sum()
    }

    fn with_known<T>(&mut self, ask: impl FnOnce(&mut Brake, &Circumstances<'_>, Instant) -> T) -> T {
        let all = self.all();
        let connected = self.members.iter().filter(|(_, member)| member.connected);
        let given_up: Waiting = connected.filter_map(|(name, member)| Some((name.clone(), member.asks()?))).collect();
        let members = &self.members;
        let weigh = |items: &BTreeSet<Item>| {
            let copies = members.values().flat_map(|member| &member.copies);
            copies.filter(|copy| items.contains(&Item::Source(source(copy.1)))).count() as u64
        };
        let known = Circumstances {
            uid: "r",
            limit: Limit::default(),
            all,
            weigh: &weigh,
            doubtful: &|_| true,
            is_away: &|_| false,
            wanted: &|| format!("{:?}", self.sources),
            release: self.release.as_deref(),
            takeovers: Some(Waiting::new()),
            takeovers_limit: Limit::default(),
            given_up: Some(given_up),
        };
        ask(&mut self.brake, &known, self.now)
    }

    fn permits(&self) -> BTreeSet<(ClusterName, AskedDigest)> {
        let named = |name: &ClusterName| Some((name.clone(), self.brake.judged().let_go(name)?));
        self.members.keys().filter_map(named).collect()
    }

    fn judge(&mut self) {
        let (permits, holding) = (self.permits(), self.brake.given_up().held().clone());
        self.with_known(|brake, known, now| brake.judge(known, now));
        self.remove_sources();
        let new: BTreeSet<_> = self.permits().difference(&permits).cloned().collect();
        if new.is_empty() {
            return;
        }
        let copies = |(name, digest): &(ClusterName, AskedDigest)| {
            let asked = self.members[name].asks().filter(|asked| asked.digest == *digest);
            asked.map_or(0, |asked| u64::from(asked.objects))
        };
        let sum = new.iter().map(copies).sum();
        let release = self.release.clone().unwrap_or_default();
        if let Some(digest) =
            release.split(',').find(|digest| self.named.get(*digest).is_some_and(|shown| new.is_subset(shown)))
        {
            self.named.remove(digest);
            self.released += sum;
            return;
        }
        let was_held =
            |one: &&(ClusterName, AskedDigest)| holding.get(&one.0).is_some_and(|asked| asked.digest == one.1);
        assert_eq!(new.iter().filter(was_held).count(), 0, "what was held passed without a release");
        self.spend(sum);
    }

    fn spend(&mut self, copies: u64) {
        self.spent.retain(|(at, _)| self.now.saturating_duration_since(*at) < WINDOW);
        let before: u64 = self.spent.iter().map(|(_, copies)| copies).sum();
        let all = self.all() + before + copies;
        assert!(Limit::default().allows(before + copies, all), "{copies} of {all} go, and {before} before");
        self.spent.push((self.now, copies));
        self.removed += copies;
    }

    /// What the hub no longer selects goes everywhere as soon as it passes, unless it was released.
    fn remove_sources(&mut self) {
        for number in 0..SOURCES {
            let passes = self.brake.judged().passes(&Item::Source(source(number)));
            if !passes || self.sources.contains(&number) {
                continue;
            }
            let before = self.all();
            for member in self.members.values_mut() {
                member.copies.retain(|copy| copy.1 != number);
                member.sources.remove(&number);
            }
            let (copies, removal) = (before - self.all(), self.status.0.as_ref());
            let release = self.release.as_deref().unwrap_or_default();
            // Another process takes what goes while the rule wants the same for what is left of what was released.
            let wanted = format!("{:?}", self.sources);
            let is_rest = |shown: &Memory| shown.released && shown.wanted == wanted;
            let was_shown =
                removal.is_some_and(|shown| is_rest(shown) || release.split(',').any(|digest| digest == shown.digest));
            if copies > 0 && !was_shown {
                self.spend(copies);
            }
        }
    }

    /// The hub says what may go, and the status is written. An agent removes what is named, if that is what waits.
    fn follow(&mut self) {
        for (name, digest) in self.permits() {
            let member = self.members.get_mut(&name).unwrap();
            if member.connected && member.asks().is_some_and(|asked| asked.digest == digest) {
                member.copies = &member.copies - &member.given_up();
            }
        }
        let names: Vec<_> = self.members.keys().cloned().collect();
        names.iter().for_each(|name| self.report(name));
        if self.brake.due().is_some_and(|due| due <= self.now) {
            self.judge();
        }
        let removal = self.with_known(|brake, known, _| brake.memory(known));
        self.status = (removal, self.brake.given_up().memory("r"));
        let held = self.brake.given_up().held().iter();
        let held: BTreeSet<_> = held.map(|(name, asked)| (name.clone(), asked.digest)).collect();
        if let Some(memory) = self.status.1.as_ref().filter(|memory| !memory.released) {
            self.named.entry(memory.digest.clone()).or_insert(held);
            self.holds += 1;
        }
    }

    fn edit(&mut self, dice: &mut Dice) {
        self.now += Duration::from_secs([0, 1, 10, 90][dice.roll(4) as usize]);
        let name = ClusterName::from(format!("c{}", dice.roll(CLUSTERS)));
        match dice.roll(12) {
            0..=2 => {
                let (labels, number) = (dice.roll(2) == 0, 1 + dice.roll(NAMESPACES));
                let first = dice.roll(NAMESPACES);
                let member = self.members.get_mut(&name).unwrap();
                for namespace in (first..first + number).map(|namespace| namespace % NAMESPACES) {
                    if labels {
                        member.labelled.insert(namespace)
                    } else {
                        member.labelled.remove(&namespace)
                    };
                }
                self.report(&name);
            }
            3 => self.chosen = (dice.roll(3)..NAMESPACES - dice.roll(3)).collect(),
            4 => self.granted = (0..NAMESPACES - dice.roll(4)).collect(),
            5 => {
                let number = dice.roll(SOURCES);
                if self.sources.remove(&number) {
                    self.brake.remove(Item::Source(source(number)), Cause::Indirect)
                } else {
                    self.sources.insert(number);
                    self.brake.keep(&Item::Source(source(number)));
                }
                self.judge();
            }
            6 | 7 => {
                let shown = [&self.status.0, &self.status.1].into_iter().flatten().filter(|memory| !memory.released);
                self.release = Some(shown.map(|memory| memory.digest.clone()).collect::<Vec<_>>().join(","));
                self.judge();
            }
            8 => {
                // Another process; agents come back to it one after another. It does not know what went a moment ago.
                let (removal, given_up) = &self.status;
                self.brake = Brake::remembering(removal.as_ref(), None, given_up.as_ref());
                self.spent.clear();
                self.members.values_mut().for_each(|member| member.connected = false);
                for number in (0..SOURCES).filter(|number| !self.sources.contains(number)).collect::<Vec<_>>() {
                    self.brake.remove(Item::Source(source(number)), Cause::Indirect);
                }
                self.judge();
            }
            9 => self.members.get_mut(&name).unwrap().connected ^= true,
            _ => {}
        }
        // Somebody hears of the edits, others do not yet.
        for number in 0..CLUSTERS {
            let name = ClusterName::from(format!("c{number}"));
            if dice.roll(2) == 0 {
                self.members.get_mut(&name).unwrap().connected = true;
                self.hear(&name);
            }
        }
    }
}

#[test]
fn approved_prune_that_still_waits_is_judged_again() {
    let (mut world, name) = (World::new(), ClusterName::from("c0"));
    world.members.get_mut(&name).unwrap().labelled.retain(|namespace| *namespace >= 3);
    world.report(&name);
    world.now += Duration::from_secs(1);
    world.judge();
    assert_eq!(world.permits().len(), 1, "9 of 72");
    world.brake.has_used_up(Matter::Takeovers, &name);
    world.judge();
    assert_eq!(world.permits().len(), 1);
    // The agent has dropped it: nobody knows what became of it, so both count.
    world.brake.has_used_up(Matter::GivenUp, &name);
    world.judge();
    assert!(world.permits().is_empty() && world.brake.given_up().is_holding());
}

#[test]
fn random_namespace_edits_never_prune_more_than_the_limit() {
    let (mut removed, mut released, mut holds) = (0, 0, 0);
    for seed in 0..100 {
        let (mut world, mut dice) = (World::new(), Dice(seed));
        for _ in 0..100 {
            world.edit(&mut dice);
            world.follow();
        }
        // Whatever is held can be released by what is shown.
        for _ in 0..6 {
            let names: Vec<_> = world.members.keys().cloned().collect();
            world.members.values_mut().for_each(|member| member.connected = true);
            names.iter().for_each(|name| world.hear(name));
            world.brake.settle(&BTreeSet::new());
            world.follow();
            let shown = [&world.status.0, &world.status.1].into_iter().flatten().filter(|memory| !memory.released);
            world.release = Some(shown.map(|memory| memory.digest.clone()).collect::<Vec<_>>().join(","));
            world.now += WINDOW;
            world.judge();
            world.follow();
        }
        let left: Vec<_> = world.members.values().flat_map(Member::given_up).collect();
        assert!(left.is_empty() && !world.brake.given_up().is_holding() && !world.brake.is_holding(), "{left:?}");
        (removed, released, holds) = (removed + world.removed, released + world.released, holds + world.holds);
    }
    assert!(removed > 1000 && released > 1000 && holds > 500, "{removed} removed, {released} released, {holds} held");
}
