//! The brake on takeovers: what `conflictPolicy: Overwrite` would lose is no more at a time than the rule's limit, until a
//! person releases exactly that set. Pure.
//!
//! An agent overwrites nothing before the hub has named it. It says, cluster by cluster, how many objects wait and a
//! digest that names them; what was judged is named back to it by that digest ([`Permits`]), so nothing else can be
//! meant. All that waits together passes if the limit allows it, with what passed within the last minute. If not, all of
//! it is held, and while anything is held whatever else comes joins it. What passed counts for a minute though another set
//! waits there by now: nobody says whether it was carried out before.
//!
//! Another process of the hub hears the same from the agents, and so calls the same set the same. All that the rule's
//! status must remember ([`Memory`]) is that something was held, so that agents which come back one after another do not
//! pass one after another, and the digest that was released last, which no later set is made with. Until every agent has
//! spoken nothing that waits passes, and a release is heeded only when the whole set is there. While it changes, a digest
//! that it had shortly before releases what has not changed since, cluster by cluster ([`Shown`]).
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use runnel_proto::model::{self, ClusterName, TakeoverDigest};

use super::digest::takeovers_digest;
use super::limit::Spent;
use super::past::Past;
use super::shown::Shown;
use super::{Circumstances, Limit, Memory};

/// What waits to be overwritten, by cluster, as agents said.
pub type Waiting = BTreeMap<ClusterName, model::Takeovers>;
/// What agents may overwrite.
pub type Permits = BTreeMap<ClusterName, TakeoverDigest>;

/// What the judgement of takeovers needs to know besides.
#[derive(Default)]
pub struct Asked {
    /// What waits, in the clusters that the rule goes to.
    pub waiting: Waiting,
    /// What may be overwritten without a release.
    pub limit: Limit,
    /// Whether the rule is to overwrite anything.
    pub overwrites: bool,
}

/// The brake on one rule's takeovers.
#[derive(Default)]
pub struct Takeovers {
    held: Waiting,
    shown: Shown,
    /// What passed without a release.
    spent: Spent,
    past: Past,
}

impl Takeovers {
    /// A brake that remembers what the rule's status says.
    pub fn remembering(memory: Option<&Memory>) -> Self {
        Self { past: Past::remembering(memory), ..Self::default() }
    }

    /// Whether something is held, by this process or by the one before.
    pub fn is_holding(&self) -> bool {
        !self.held.is_empty() || self.past.carried.is_some()
    }

    /// What is held.
    pub fn held(&self) -> &Waiting {
        &self.held
    }

    /// Every agent has said what waits, but for those that are `away`: what an earlier process held is held by this one,
    /// or is over. What waits there is no less doubtful when they come back.
    pub fn settle(&mut self, away: &BTreeSet<ClusterName>) -> bool {
        self.past.settle(away)
    }

    /// Judges all that waits now. What was permitted and waits no more is not permitted any more.
    pub fn judge(&mut self, permits: &mut Permits, known: &Circumstances<'_>, now: Instant) {
        if !known.takeovers.overwrites {
            // Nothing is left to be released, whatever agents that are away would say.
            self.past.let_go();
        }
        let waiting = &known.takeovers.waiting;
        permits.retain(|cluster, digest| waiting.get(cluster).is_some_and(|asked| asked.digest == *digest));
        let is_open =
            |(cluster, asked): &(&ClusterName, &model::Takeovers)| permits.get(*cluster) != Some(&asked.digest);
        let open: Waiting = waiting.iter().filter(is_open).map(|(cluster, asked)| (cluster.clone(), *asked)).collect();
        let is_carried = open.keys().any(|cluster| self.past.awaited.contains(cluster));
        if !self.is_holding() && !is_carried && self.may_pass(&open, known, now) {
            permits.extend(open.into_iter().map(|(cluster, asked)| (cluster, asked.digest)));
        } else {
            self.hold(open, known.uid);
        }
        self.heed_release(permits, known);
    }

    fn may_pass(&mut self, open: &Waiting, known: &Circumstances<'_>, now: Instant) -> bool {
        let objects = count(open);
        let allowed = self.spent.allows(known.takeovers.limit, objects, known.all, now);
        if allowed {
            self.spent.add(objects, now);
        }
        allowed
    }

    fn hold(&mut self, held: Waiting, uid: &str) {
        if self.held != held {
            self.held = held;
            self.shown.note(&self.held, self.named(uid).map(|named| named.digest));
        }
    }

    /// The digest is that of what waits here and now, or waited shortly before, whatever another process has shown.
    fn heed_release(&mut self, permits: &mut Permits, known: &Circumstances<'_>) {
        let Some((digest, same)) = self.shown.released(known.release) else { return };
        let (go, stay): (Waiting, Waiting) =
            std::mem::take(&mut self.held).into_iter().partition(|(cluster, _)| same.contains(cluster));
        self.past.awaited.retain(|cluster| !go.contains_key(cluster));
        self.past.carried = None;
        let previous = std::mem::replace(&mut self.past.previous, digest.clone());
        self.past.released =
            Some(Memory { digest, copies: count(&go), wanted: String::new(), released: true, previous });
        permits.extend(go.into_iter().map(|(cluster, asked)| (cluster, asked.digest)));
        // What stays has a name of its own, and what was named before is used up.
        self.shown = Shown::default();
        self.hold(stay, known.uid);
    }

    fn named(&self, uid: &str) -> Option<Memory> {
        let digest = takeovers_digest(uid, &self.past.previous, &self.held);
        let (previous, wanted) = (self.past.previous.clone(), String::new());
        let memory = Memory { digest, copies: count(&self.held), wanted, released: false, previous };
        (!self.held.is_empty()).then_some(memory)
    }

    /// What the status says: what is held, or what was released last. `None` if there is nothing to say.
    pub fn memory(&self, uid: &str) -> Option<Memory> {
        let named = self.named(uid);
        let copies = named.as_ref().map_or(0, |named| named.copies);
        // Agents that were heard by another process have not all spoken to this one.
        let carried = self.past.carried.as_ref().filter(|carried| carried.copies > copies).cloned();
        carried.or(named).or_else(|| self.past.released.clone())
    }
}

fn count(waiting: &Waiting) -> u64 {
    waiting.values().map(|asked| u64::from(asked.objects)).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn waiting(all: &[(&str, u32, u8)]) -> Waiting {
        let asked = |objects, name| model::Takeovers { objects, digest: TakeoverDigest([name; 16]) };
        all.iter().map(|(cluster, objects, name)| ((*cluster).into(), asked(*objects, *name))).collect()
    }

    /// One rule of 20 copies, so that the limit is 10.
    #[derive(Default)]
    struct Rule {
        brake: Takeovers,
        permits: Permits,
        release: Option<String>,
        now: Option<Instant>,
        limit: Limit,
        fails: bool,
    }

    impl Rule {
        fn hears(&mut self, all: &[(&str, u32, u8)]) -> Vec<String> {
            let asked = Asked { waiting: waiting(all), limit: self.limit, overwrites: !self.fails };
            let (weigh, doubtful, wanted) = (|_: &BTreeSet<_>| 0, |_: &_| true, String::new);
            let known = Circumstances {
                uid: "r",
                limit: Limit::default(),
                all: 20,
                weigh: &weigh,
                doubtful: &doubtful,
                is_away: &|_| false,
                wanted: &wanted,
                release: self.release.as_deref(),
                takeovers: asked,
            };
            let now = *self.now.get_or_insert_with(Instant::now);
            self.brake.judge(&mut self.permits, &known, now);
            self.permits.iter().map(|(cluster, digest)| format!("{cluster}:{}", digest.0[0])).collect()
        }

        fn later(&mut self, seconds: u64) {
            self.now = self.now.map(|now| now + Duration::from_secs(seconds));
        }

        fn memory(&self) -> Memory {
            self.brake.memory("r").unwrap()
        }

        /// Another process of the hub takes over.
        fn restart(&mut self) {
            self.brake = Takeovers::remembering(self.brake.memory("r").as_ref());
            self.permits.clear();
        }
    }

    #[test]
    fn what_the_limit_allows_is_named_back_and_what_passed_lately_counts() {
        let mut rule = Rule::default();
        assert_eq!(rule.hears(&[("a", 6, 1)]), ["a:1"]);
        assert_eq!(rule.hears(&[("a", 6, 1), ("b", 4, 2)]), ["a:1", "b:2"]);
        // Done in one; one more elsewhere is the eleventh.
        assert_eq!(rule.hears(&[("b", 4, 2), ("c", 1, 3)]), ["b:2"]);
        assert!(rule.brake.is_holding() && rule.memory().copies == 1);
        // What is held stays so, however late it is.
        rule.later(300);
        assert!(rule.hears(&[("c", 1, 3)]).is_empty());
        // It waits no more: somebody took it away, or the rule does not overwrite any more.
        assert!(rule.hears(&[]).is_empty() && !rule.brake.is_holding());
        assert_eq!(rule.hears(&[("c", 10, 4)]), ["c:4"]);
        // Another set in the same cluster is not what passed.
        assert!(rule.hears(&[("c", 10, 5)]).is_empty() && rule.brake.is_holding());
    }

    #[test]
    fn a_release_is_good_for_the_set_that_was_shown_and_once() {
        let mut rule = Rule::default();
        assert!(rule.hears(&[("a", 11, 1)]).is_empty());
        let first = rule.memory();
        assert_eq!((first.copies, first.released), (11, false));
        rule.release = Some(first.digest.clone());
        assert!(rule.hears(&[("a", 11, 3)]).is_empty(), "as many, but others");
        let other = rule.memory().digest;
        rule.release = Some(format!("0123, {other}"));
        assert_eq!(rule.hears(&[("a", 11, 3)]), ["a:3"], "one of several digests");
        assert!(rule.memory().released && !rule.brake.is_holding());
        assert_eq!(rule.hears(&[("a", 11, 3)]), ["a:3"], "while it waits to be heard");
        // Carried out; the same objects come again.
        assert!(rule.hears(&[]).is_empty());
        assert!(rule.hears(&[("a", 11, 3)]).is_empty(), "the digest is used up");
        assert_ne!(rule.memory().digest, other);
    }

    #[test]
    fn a_member_that_finds_something_else_all_the_time_keeps_nobody_from_releasing_the_rest() {
        let mut rule = Rule::default();
        let mut shown = vec![];
        for name in 10..60 {
            let changes = if name < 20 { 1 } else { 2 };
            assert!(rule.hears(&[("a", 11, changes), ("b", 3, 3), ("busy", 1, name)]).is_empty());
            shown.push(rule.memory().digest);
        }
        // When this was shown, one was not yet what it is.
        rule.release = Some(shown[5].clone());
        assert_eq!(rule.hears(&[("a", 11, 2), ("b", 3, 3), ("busy", 1, 60)]), ["b:3"]);
        let rest = rule.memory();
        assert_eq!((rest.copies, rest.released, &rest.previous), (12, false, &shown[5]));
        assert!(!shown.contains(&rest.digest));
        // Whatever was shown before that is used up, and one that is back at what it was has not waited ever since.
        rule.release = Some(shown.join(","));
        for name in [61, 15] {
            assert_eq!(rule.hears(&[("a", 11, 2), ("b", 3, 3), ("busy", 1, name)]), ["b:3"]);
        }
        rule.release = Some(rest.digest);
        assert_eq!(rule.hears(&[("a", 11, 2), ("b", 3, 3), ("busy", 1, 62)]), ["a:2", "b:3"]);
        assert_eq!((rule.memory().copies, rule.memory().released), (1, false));
        // Nothing that was released fits again.
        assert!(rule.hears(&[("busy", 1, 62)]).is_empty());
        assert!(rule.hears(&[("a", 11, 2), ("b", 3, 3), ("busy", 1, 62)]).is_empty());
        rule.release = Some(rule.memory().digest);
        assert_eq!(rule.hears(&[("a", 11, 2), ("b", 3, 3), ("busy", 1, 62)]).len(), 3);
        assert!(rule.memory().released && !rule.brake.is_holding());
    }

    #[test]
    fn another_process_lets_nothing_pass_that_was_held_and_knows_it_by_the_same_name() {
        let mut rule = Rule::default();
        assert!(rule.hears(&[("a", 8, 1), ("b", 8, 2)]).is_empty());
        let held = rule.memory();
        rule.restart();
        assert_eq!(rule.memory(), held);
        // They come back one after another, each below the limit.
        assert!(rule.hears(&[("a", 8, 1)]).is_empty());
        assert_eq!(rule.memory(), held, "nothing flaps");
        rule.release = Some(held.digest.clone());
        assert!(rule.hears(&[("a", 8, 1)]).is_empty(), "it is not the whole set yet");
        assert_eq!(rule.hears(&[("a", 8, 1), ("b", 8, 2)]), ["a:1", "b:2"]);
        // Another process, before anything was carried out: too many again, under another digest.
        rule.restart();
        assert!(rule.hears(&[("a", 8, 1), ("b", 8, 2)]).is_empty());
        assert_ne!(rule.memory().digest, held.digest);

        // Every agent has spoken, and what one of them held is over: the rest has a name of its own, and is held.
        let whole = rule.memory();
        rule.restart();
        assert!(rule.hears(&[("b", 8, 2)]).is_empty());
        assert_eq!(rule.memory(), whole);
        assert!(rule.brake.settle(&BTreeSet::new()));
        assert!(rule.hears(&[("b", 8, 2)]).is_empty() && rule.memory().copies == 8);
        rule.release = Some(rule.memory().digest);
        assert_eq!(rule.hears(&[("b", 8, 2)]), ["b:2"]);

        // It is over, and what was released before it is remembered: the first set again is not that one.
        rule.hears(&[("b", 8, 2), ("c", 11, 3)]);
        assert!(rule.brake.is_holding());
        for _ in 0..2 {
            rule.restart();
            rule.hears(&[]);
            rule.brake.settle(&BTreeSet::new());
            assert!(!rule.brake.is_holding() && rule.memory().released);
        }
        assert!(rule.hears(&[("b", 11, 4)]).is_empty());
        assert_eq!(Some(rule.memory().previous), rule.release);

        // The rule does not overwrite any more: there is nothing to be released, and it need not be waited for.
        rule.restart();
        rule.fails = true;
        assert!(rule.hears(&[]).is_empty() && !rule.brake.is_holding() && rule.memory().released);
        rule.fails = false;
        assert_eq!(rule.hears(&[("b", 8, 2)]), ["b:2"]);

        // Nothing is left of it at all.
        let mut over = Rule::default();
        over.hears(&[("a", 11, 1)]);
        over.restart();
        assert!(over.hears(&[]).is_empty() && over.brake.is_holding());
        over.brake.settle(&BTreeSet::new());
        assert_eq!((over.brake.is_holding(), over.brake.memory("r")), (false, None));
    }
}
