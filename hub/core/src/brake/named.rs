//! The brake on what only agents can tell: the objects that `conflictPolicy: Overwrite` would lose, and the copies in
//! namespaces that are no longer targets. No more of either go at a time than the rule's limit, until a person releases
//! exactly that set. Pure.
//!
//! An agent does nothing of it before the hub has named it. It says, cluster by cluster, how many objects wait and a
//! digest that names them; what was judged is named back to it by that digest ([`Permits`]), so nothing else can be
//! meant. All that waits together passes if the limit allows it, with what passed within the last minute. If not, all of
//! it is held, and while anything is held whatever else comes joins it. What passed counts for a minute though another set
//! waits there by now: nobody says whether it was carried out before.
//!
//! What is to be removed is found out by all agents at about the same time, and is one removal. So what is within the limit
//! passes only when nothing else has come for a moment ([`Question::delay`]).
//!
//! Another process of the hub hears the same from the agents, and so calls the same set the same. All that the rule's
//! status must remember ([`Memory`]) is that something was held, so that agents which come back one after another do not
//! pass one after another, and the digest that was released last, which no later set is made with. Until every agent has
//! spoken nothing that waits passes, and a release is heeded only when the whole set is there. While it changes, a digest
//! that it had shortly before releases what has not changed since, cluster by cluster ([`Shown`]).
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use runnel_proto::model::{self, AskedDigest, ClusterName};

use super::digest::named_digest;
use super::limit::Spent;
use super::past::Past;
use super::shown::Shown;
use super::{Limit, Memory};

/// However much else comes, what is within the limit waits for no more than so many delays.
const DELAYS: u32 = 5;

/// What waits, by cluster, as agents said.
pub type Waiting = BTreeMap<ClusterName, model::Asked>;
/// What agents may overwrite, or let go.
pub type Permits = BTreeMap<ClusterName, AskedDigest>;

/// What it is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Matter {
    /// Objects that are not Runnel's are to be overwritten.
    #[default]
    Takeovers,
    /// Copies are to be removed in namespaces that are no longer targets.
    GivenUp,
}

/// What the judgement needs to know.
pub struct Question<'a> {
    /// The rule's uid: no digest fits two rules.
    pub uid: &'a str,
    /// What waits now; `None` if the rule is to do nothing of the kind any more.
    pub waiting: Option<&'a Waiting>,
    /// What may pass without a release.
    pub limit: Limit,
    /// All copies of the rule.
    pub all: u64,
    /// The digests that the rule's annotation releases.
    pub release: Option<&'a str>,
    /// Something else is held, and whatever comes joins it.
    pub joins: bool,
    /// For how long nothing else must have come before something passes.
    pub delay: Duration,
}

/// What is within the limit, and waits for what else may come.
#[derive(Clone)]
struct Ripening {
    open: Waiting,
    first: Instant,
    due: Instant,
}

/// The brake on one matter of a rule.
#[derive(Clone, Default)]
pub struct Named {
    matter: Matter,
    held: Waiting,
    shown: Shown,
    ripening: Option<Ripening>,
    past: Past,
}

impl Named {
    /// A brake that remembers what the rule's status says.
    pub fn remembering(matter: Matter, memory: Option<&Memory>) -> Self {
        Self { matter, past: Past::remembering(memory), ..Self::default() }
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

    /// When what waits for nothing but that is to be judged again.
    pub fn due(&self) -> Option<Instant> {
        self.ripening.as_ref().map(|ripening| ripening.due)
    }

    /// Whether an agent asks for something else than what was judged.
    pub fn asks_anew(&self, permits: &Permits, cluster: &ClusterName, asked: Option<model::Asked>) -> bool {
        let permit = permits.get(cluster);
        let ripening = self.ripening.as_ref().and_then(|ripening| ripening.open.get(cluster));
        let known = self.held.get(cluster).or(ripening);
        match asked {
            Some(asked) => permit != Some(&asked.digest) && known != Some(&asked),
            None => permit.is_some() || known.is_some(),
        }
    }

    /// Judges all that waits now. What was permitted and waits no more is not permitted any more.
    pub fn judge(&mut self, permits: &mut Permits, asked: &Question<'_>, spent: &mut Spent, now: Instant) {
        if asked.waiting.is_none() || asked.limit == Limit::NONE {
            // Nothing is left to be released, whatever agents that are away would say.
            self.held = Waiting::new();
            self.past.let_go();
        }
        let none = Waiting::new();
        let waiting = asked.waiting.unwrap_or(&none);
        permits.retain(|cluster, digest| waiting.get(cluster).is_some_and(|asked| asked.digest == *digest));
        let is_open = |(cluster, asked): &(&ClusterName, &model::Asked)| permits.get(*cluster) != Some(&asked.digest);
        let open: Waiting = waiting.iter().filter(is_open).map(|(cluster, asked)| (cluster.clone(), *asked)).collect();
        let is_carried = open.keys().any(|cluster| self.past.awaited.contains(cluster));
        let joins = self.is_holding() || is_carried || asked.joins;
        if open.is_empty() || joins || !spent.allows(asked.limit, count(&open), asked.all, now) {
            self.ripening = None;
            self.hold(open, asked.uid);
        } else if self.is_ripe(&open, asked.delay, now) {
            spent.add(count(&open), now);
            permits.extend(open.into_iter().map(|(cluster, asked)| (cluster, asked.digest)));
        }
        self.heed_release(permits, asked);
    }

    /// Whether nothing else has come for long enough.
    fn is_ripe(&mut self, open: &Waiting, delay: Duration, now: Instant) -> bool {
        let ripening = match self.ripening.take() {
            Some(known) if known.open == *open => known,
            known => {
                let first = known.map_or(now, |known| known.first);
                Ripening { open: open.clone(), first, due: (now + delay).min(first + DELAYS * delay) }
            }
        };
        let is_ripe = ripening.due <= now;
        if !is_ripe {
            self.ripening = Some(ripening);
        }
        is_ripe
    }

    fn hold(&mut self, held: Waiting, uid: &str) {
        self.held = held;
        // What agents bring one after another has a name that nobody is shown before all of it is there.
        let shown = self.named(uid).filter(|named| self.carried_beyond(named.copies).is_none());
        self.shown.note(&self.held, shown.map(|named| named.digest));
    }

    /// The digest is that of what waits here and now, or waited shortly before, whatever another process has shown.
    fn heed_release(&mut self, permits: &mut Permits, asked: &Question<'_>) {
        let Some((digest, same)) = self.shown.released(asked.release) else { return };
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
        self.hold(stay, asked.uid);
    }

    fn named(&self, uid: &str) -> Option<Memory> {
        let digest = named_digest(self.matter, uid, &self.past.previous, &self.held);
        let (previous, wanted) = (self.past.previous.clone(), String::new());
        let memory = Memory { digest, copies: count(&self.held), wanted, released: false, previous };
        (!self.held.is_empty()).then_some(memory)
    }

    /// What the status says: what is held, or what was released last. `None` if there is nothing to say.
    pub fn memory(&self, uid: &str) -> Option<Memory> {
        let named = self.named(uid);
        let carried = self.carried_beyond(named.as_ref().map_or(0, |named| named.copies)).cloned();
        carried.or(named).or_else(|| self.past.released.clone())
    }

    /// What another process held, while agents that it heard have not all spoken to this one.
    fn carried_beyond(&self, copies: u64) -> Option<&Memory> {
        self.past.carried.as_ref().filter(|carried| carried.copies > copies)
    }
}

fn count(waiting: &Waiting) -> u64 {
    waiting.values().map(|asked| u64::from(asked.objects)).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(all: &[(&str, u32, u8)]) -> Waiting {
        let asked = |objects, name| model::Asked { objects, digest: AskedDigest([name; 16]) };
        all.iter().map(|(cluster, objects, name)| ((*cluster).into(), asked(*objects, *name))).collect()
    }

    /// One rule of 20 copies, so that the limit is 10.
    #[derive(Default)]
    struct Rule {
        brake: Named,
        spent: Spent,
        permits: Permits,
        release: Option<String>,
        now: Option<Instant>,
        limit: Limit,
        joins: bool,
        delay: Duration,
        is_over: bool,
    }

    impl Rule {
        fn hears(&mut self, all: &[(&str, u32, u8)]) -> Vec<String> {
            let all = waiting(all);
            let question = Question {
                uid: "r",
                waiting: Some(&all).filter(|_| !self.is_over),
                limit: self.limit,
                all: 20,
                release: self.release.as_deref(),
                joins: self.joins,
                delay: self.delay,
            };
            let now = *self.now.get_or_insert_with(Instant::now);
            self.brake.judge(&mut self.permits, &question, &mut self.spent, now);
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
            self.brake = Named::remembering(self.brake.matter, self.brake.memory("r").as_ref());
            self.permits.clear();
        }
    }

    #[test]
    fn allowed_removals_are_named_back_and_recent_ones_count() {
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
    fn member_with_ever_new_findings_blocks_no_other_approval() {
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
    fn another_process_blocks_the_same_set_by_the_same_digest() {
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

        // A part of it that was shown alone before is not released while the whole is shown.
        let mut part = Rule::default();
        assert!(part.hears(&[("a", 11, 1)]).is_empty());
        let alone = part.memory().digest;
        assert!(part.hears(&[("a", 11, 1), ("b", 8, 2)]).is_empty());
        part.restart();
        part.release = Some(alone);
        assert!(part.hears(&[("a", 11, 1)]).is_empty());
        assert!(part.hears(&[("a", 11, 1), ("b", 8, 2)]).is_empty());

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
        rule.is_over = true;
        assert!(rule.hears(&[]).is_empty() && !rule.brake.is_holding() && rule.memory().released);
        rule.is_over = false;
        assert_eq!(rule.hears(&[("b", 8, 2)]), ["b:2"]);

        // Nothing is left of it at all.
        let mut over = Rule::default();
        over.hears(&[("a", 11, 1)]);
        over.restart();
        assert!(over.hears(&[]).is_empty() && over.brake.is_holding());
        over.brake.settle(&BTreeSet::new());
        assert_eq!((over.brake.is_holding(), over.brake.memory("r")), (false, None));
    }

    #[test]
    fn retained_copy_stays_unmarked_until_it_is_equal_again() {
        let mut rule = Rule { delay: Duration::from_secs(1), ..Rule::default() };
        assert!(rule.hears(&[("a", 4, 1)]).is_empty() && !rule.brake.is_holding());
        assert!(!rule.brake.asks_anew(&rule.permits, &"a".into(), waiting(&[("a", 4, 1)]).remove(&"a".into())));
        rule.later(1);
        // Too late by a hair: with what comes now it is judged together, and is too much.
        assert!(rule.hears(&[("a", 4, 1), ("b", 4, 2)]).is_empty() && !rule.brake.is_holding());
        assert!(rule.hears(&[("a", 4, 1), ("b", 4, 2), ("c", 4, 3)]).is_empty());
        assert_eq!((rule.brake.is_holding(), rule.memory().copies, rule.brake.due()), (true, 12, None));
        assert!(rule.hears(&[]).is_empty() && !rule.brake.is_holding());

        assert!(rule.hears(&[("a", 4, 1)]).is_empty());
        rule.later(1);
        assert!(rule.brake.due() <= rule.now);
        assert_eq!(rule.hears(&[("a", 4, 1)]), ["a:1"]);
        // What comes again and again does not put it off for ever.
        for number in 2..7 {
            assert!(rule.hears(&[("b", 4, number)]).is_empty(), "{number}");
            rule.later(1);
        }
        assert_eq!(rule.hears(&[("b", 4, 9)]), ["b:9"]);
    }

    #[test]
    fn removals_join_a_blocked_set_unless_there_is_no_limit() {
        let mut rule = Rule { joins: true, ..Rule::default() };
        assert!(rule.hears(&[("a", 1, 1)]).is_empty() && rule.brake.is_holding());
        rule.joins = false;
        assert!(rule.hears(&[("a", 1, 1)]).is_empty(), "what is held stays so");
        rule.limit = Limit::NONE;
        assert_eq!(rule.hears(&[("a", 1, 1)]), ["a:1"]);
        assert!(!rule.brake.is_holding());
        // The same set is called otherwise in another matter.
        let names = [Matter::Takeovers, Matter::GivenUp].map(|matter| {
            let brake = Named { matter, held: waiting(&[("a", 11, 1)]), ..Named::default() };
            brake.memory("r").unwrap().digest
        });
        assert_ne!(names[0], names[1]);
    }
}
