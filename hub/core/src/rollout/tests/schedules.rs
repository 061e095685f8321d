//! Random schedules of failures, edits, pauses, outages, restarts and lost writes, in simulated time.
use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const CLUSTERS: usize = 12;

#[derive(Clone, Debug)]
enum Event {
    /// A cluster that has been sent the target applies it.
    Applies(usize),
    /// A cluster fails to apply it.
    Fails(usize),
    /// The failure ends.
    Recovers(usize),
    TargetClusters(usize),
    /// A cluster reconnects with its former state.
    Comes(usize),
    /// A cluster is created or chosen again with its former state, at some position of the order.
    Joins(usize, bool),
    Leaves(usize),
    /// It gets another place in the order.
    Moves(usize, usize),
    Edit,
    Pause(bool),
    /// The hub is killed and restarted; its last decision was written, or not.
    Killed {
        written: bool,
    },
    Wait(u64),
    Budget(u64),
    /// Whether what fails is to be rolled back.
    RollingBack(bool),
    /// The stored state for a rollback is lost.
    Loses,
    /// Whether waves wait for approval.
    NeedsApproval(bool),
    /// A person approves the wave that the status shows.
    Approves,
    /// Whether the rule has windows.
    RuleWindows(bool),
    /// Whether a cluster has windows.
    ClusterWindows(usize, bool),
    /// A check of the analysis that is due ends like this.
    Checked(bool),
    /// Whether the copies of a cluster are healthy.
    Healthy(usize, bool),
}

fn happens() -> impl Strategy<Value = Event> {
    let cluster = || 0..CLUSTERS;
    prop_oneof![
        8 => cluster().prop_map(Event::Applies),
        2 => cluster().prop_map(Event::Fails),
        1 => cluster().prop_map(Event::Recovers),
        2 => cluster().prop_map(Event::TargetClusters),
        2 => cluster().prop_map(Event::Comes),
        1 => (cluster(), any::<bool>()).prop_map(|(number, begins_again)| Event::Joins(number, begins_again)),
        1 => cluster().prop_map(Event::Leaves),
        2 => (cluster(), 0..4usize).prop_map(|(number, tier)| Event::Moves(number, tier)),
        1 => Just(Event::Edit),
        1 => any::<bool>().prop_map(Event::Pause),
        1 => any::<bool>().prop_map(|written| Event::Killed { written }),
        3 => (1u64..100).prop_map(Event::Wait),
        1 => (0u64..4).prop_map(Event::Budget),
        1 => any::<bool>().prop_map(Event::RollingBack),
        1 => Just(Event::Loses),
        1 => any::<bool>().prop_map(Event::NeedsApproval),
        4 => Just(Event::Approves),
        1 => any::<bool>().prop_map(Event::RuleWindows),
        3 => prop::bool::weighted(0.7).prop_map(Event::Checked),
        1 => (cluster(), any::<bool>()).prop_map(|(number, has)| Event::ClusterWindows(number, has)),
        4 => (cluster(), any::<bool>()).prop_map(|(number, is)| Event::Healthy(number, is)),
    ]
}

/// The true state of a cluster, independent of what the hub observes.
#[derive(Clone, Debug, Default)]
struct Cluster {
    connected: bool,
    tier: usize,
    /// The newest target that was sent to it, and how it did.
    sent: Option<(String, Option<bool>)>,
    there: bool,
    /// Whether its copies are not healthy yet, whatever they are.
    unready: bool,
}

impl Cluster {
    fn sent_to(&self, target: &str) -> bool {
        self.sent.as_ref().is_some_and(|(sent, _)| sent == target)
    }
}

/// The hub's world, and the truth beside it.
struct Simulated {
    hub: World,
    clusters: Vec<Cluster>,
    edits: u32,
    uptime: u64,
    /// The completed targets.
    completed: BTreeSet<String>,
    /// The target whose state is stored.
    kept: Option<String>,
    /// The waves that the status has shown: their clusters, by digest.
    shown: BTreeMap<String, Vec<String>>,
}

impl Simulated {
    fn new(rollout: Rollout) -> Self {
        let there = |number| Cluster {
            connected: true,
            tier: number / 4,
            there: number % 5 != 4,
            ..Cluster::default()
        };
        let (hub, clusters) = (World::new(0, rollout), (0..CLUSTERS).map(there).collect());
        let mut simulated = Self {
            hub,
            clusters,
            edits: 0,
            uptime: 1000,
            completed: BTreeSet::new(),
            kept: None,
            shown: BTreeMap::new(),
        };
        simulated.observe();
        simulated
    }

    fn turn(&self, number: usize) -> RolloutPosition {
        turn(
            Some(&self.clusters[number].tier.to_string()),
            &format!("c{number}"),
        )
    }

    /// Observes the clusters as the hub does.
    fn observe(&mut self) {
        let target = self.hub.target.clone();
        let known = self.hub.progress.as_ref();
        let progress = known.filter(|progress| progress.revision == target);
        let base = match progress {
            Some(progress) if !progress.is_completed() => progress.base.clone(),
            _ => known.and_then(|progress| progress.completed_target().map(ToOwned::to_owned)),
        };
        self.hub.has_former = base.is_some() && base == self.kept;
        let is_rollback = progress.is_some_and(|progress| progress.phase.is_rollback());
        // The target that clusters are compared with.
        let wanted = if is_rollback && self.hub.has_former {
            base.unwrap()
        } else {
            target
        };
        let all = self
            .clusters
            .iter()
            .enumerate()
            .filter(|(_, cluster)| cluster.there);
        self.hub.clusters = all
            .map(|(number, cluster)| {
                let health = match &cluster.sent {
                    _ if !cluster.connected => Health::Unavailable,
                    Some((sent, Some(true))) if *sent == wanted => {
                        let waits = self.hub.rollout.waits_for_health && !is_rollback;
                        if waits && cluster.unready {
                            Health::Unready
                        } else {
                            Health::Applied
                        }
                    }
                    Some((sent, Some(false))) if *sent == wanted => Health::Failed,
                    _ => Health::Pending,
                };
                (self.turn(number), health)
            })
            .collect();
        self.hub.settling =
            self.uptime < 45 && self.clusters.iter().any(|one| one.there && !one.connected);
        let is_new = self.hub.gate.is_none() || self.hub.settling;
        let is_at_work = |cluster: &Cluster| {
            is_new
                && cluster.there
                && cluster.connected
                && cluster.sent == Some((wanted.clone(), None))
        };
        let at_work = self
            .clusters
            .iter()
            .enumerate()
            .filter(|(_, cluster)| is_at_work(cluster));
        self.hub.at_work = at_work
            .map(|(number, _)| format!("c{number}").into())
            .collect();
    }

    /// Takes a step and checks its result.
    fn step(&mut self, written: bool) -> Result<(), TestCaseError> {
        self.observe();
        let (before, gate) = (self.hub.progress.clone(), self.hub.gate.clone());
        let were_in: BTreeSet<String> = self
            .hub
            .admitted()
            .into_iter()
            .map(ToOwned::to_owned)
            .collect();
        let phase = self.hub.step();
        if !written {
            // The write failed: neither its status nor its admissions count.
            (self.hub.progress, self.hub.gate) = (before, gate);
            return Ok(());
        }
        let reported_progress = self.hub.reported_progress().clone();
        let gate_now = &self.hub.gate.clone().unwrap();
        if gate_now.is_settled && gate_now.wakes_at.is_none() {
            // Time alone changes neither the status nor the admissions, except where the budget
            // ended the rollout.
            let (message, lets_in) = (self.hub.progress.clone(), self.hub.gate.clone());
            self.hub.seconds += 100_000;
            self.hub.step();
            self.hub.seconds -= 100_000;
            prop_assert_eq!(
                (&self.hub.progress, &self.hub.gate),
                (&message, &lets_in),
                "it rests, and time moved it"
            );
        }
        if let Some(pending) = &reported_progress.pending_wave {
            let names = pending.names.clone();
            let before = self.shown.insert(pending.digest.clone(), names.clone());
            prop_assert!(
                before.is_none_or(|before| before == names),
                "two waves with one digest"
            );
        }
        if reported_progress.is_completed() {
            self.completed.insert(reported_progress.revision.clone());
            if self.hub.rollout.reverts
                && before.as_ref().is_none_or(|before| !before.is_completed())
            {
                self.kept = Some(reported_progress.revision.clone());
            }
        }
        if phase.is_rollback() {
            return self.went_back(&reported_progress, &were_in);
        }
        let health = |name: &str| {
            *self
                .hub
                .clusters
                .iter()
                .find(|(turn, _)| turn.cluster.as_str() == name)
                .unwrap()
                .1
        };
        let new: Vec<_> = self
            .hub
            .admitted()
            .into_iter()
            .filter(|name| !were_in.contains(*name))
            .collect();
        if phase == Phase::Completed {
            let behind = self
                .hub
                .clusters
                .values()
                .filter(|health| **health == Health::Pending)
                .count() as u64;
            let same = |before: &Progress| {
                before.phase == Phase::Completed && before.revision == reported_progress.revision
            };
            // An unfinished cluster counts as an allowed failure.
            let allowed = before.as_ref().is_some_and(same) || behind <= reported_progress.failed;
            prop_assert!(allowed, "completed, and {behind} are behind");
        }
        if self.hub.gate.as_ref().unwrap().reach == AdmittedClusters::All {
            // A cluster that is admitted without being counted has the target already.
            let was_open = gate
                .as_ref()
                .is_some_and(|gate| gate.is_open(&self.hub.target));
            let is_away = |health: &Health| *health == Health::Unavailable;
            prop_assert!(
                was_open || !self.hub.clusters.values().any(is_away),
                "open to somebody who is away"
            );
            return Ok(());
        }
        // Concurrency: the admitted clusters that have not settled.
        let since = |name: &str| match &self.hub.gate.as_ref().unwrap().reach {
            AdmittedClusters::Only(these) => {
                self.hub.now().instant - these[&runnel_proto::model::ClusterName::from(name)]
            }
            AdmittedClusters::All => Duration::ZERO,
        };
        let was_healthy = |name: &str| gate_now.healthy.contains(&ClusterName::from(name));
        let in_flight = self
            .hub
            .admitted()
            .into_iter()
            .filter(|name| match health(name) {
                Health::Pending => since(name) < STUCK_LIMIT,
                Health::Unavailable => true,
                Health::Unready => !was_healthy(name) && since(name) < STUCK_LIMIT,
                Health::Applied | Health::Quiet | Health::Failed => false,
            });
        let (in_flight, room) = (
            in_flight.count(),
            self.hub.rollout.max_concurrency.of(self.hub.clusters.len()),
        );
        // Clusters that another process admitted get nothing new.
        let is_news = |name: &str| !self.hub.at_work.contains(&ClusterName::from(name));
        let sent: Vec<_> = new
            .iter()
            .filter(|name| health(name) == Health::Pending && is_news(name))
            .collect();
        prop_assert!(
            sent.is_empty() || in_flight <= room,
            "{in_flight} under way, {room} may be"
        );
        // The analysis.
        prop_assert!(
            sent.is_empty()
                || completed_before(&before, &reported_progress)
                || !reported_progress.has_failed_analysis(&self.hub.rollout),
            "checks failed, and it went on"
        );
        // The windows of the rule and of the cluster.
        let now = self.hub.now().wall;
        for name in &sent {
            let own = self.hub.windows.get(&ClusterName::from(**name));
            prop_assert!(
                self.hub.rollout.windows.is_open(now) && own.is_none_or(|own| own.is_open(now)),
                "{name} was let in outside of its windows"
            );
        }
        // The budget, and the pause.
        let reached = |name: &str| {
            reported_progress.has_reached(
                self.hub
                    .clusters
                    .keys()
                    .find(|turn| turn.cluster.as_str() == name)
                    .unwrap(),
            )
        };
        let had_reached = |turn: &RolloutPosition| {
            before.as_ref().is_some_and(|before| {
                before.revision == reported_progress.revision && before.has_reached(turn)
            })
        };
        // A cluster that fails already when its wave begins is counted from then on.
        let counts =
            |turn: &RolloutPosition| had_reached(turn) || were_in.contains(turn.cluster.as_str());
        let failed = self
            .hub
            .clusters
            .iter()
            .filter(|(turn, how)| **how == Health::Failed && counts(turn));
        let failed = u64::try_from(failed.count()).unwrap();
        prop_assert!(
            sent.is_empty() || failed <= self.hub.rollout.max_failures,
            "{failed} failed, and it went on"
        );
        prop_assert!(
            sent.is_empty() || !self.hub.rollout.paused,
            "paused, and it went on"
        );
        // No cluster beyond the written cursor is admitted, and the wave has one label value.
        let completed = reported_progress.is_completed();
        prop_assert!(
            completed || new.iter().all(|name| reached(name)),
            "let in beyond the cursor"
        );
        // A wave that was not approved as it was shown sends nothing.
        let approved = self
            .hub
            .approval
            .as_ref()
            .and_then(|digest| self.shown.get(digest));
        let turn_of = |name: &str| {
            let mut turns = self.hub.clusters.keys();
            turns.find(|turn| turn.cluster.as_str() == name).unwrap()
        };
        let needs_approval = |name: &str| {
            self.hub.rollout.needs_approval
                && !completed
                && reported_progress.wave > 1
                && !had_reached(turn_of(name))
        };
        for name in sent.iter().filter(|name| needs_approval(name)) {
            let is_in = approved.is_some_and(|names| names.iter().any(|one| one == *name));
            prop_assert!(is_in, "{name} was not approved: {approved:?}");
        }
        let wave_began = before.as_ref().is_none_or(|before| {
            before.wave != reported_progress.wave || before.revision != reported_progress.revision
        });
        if wave_began {
            let wave = self.hub.clusters.iter().filter(|(turn, how)| {
                reported_progress.has_reached(turn)
                    && !had_reached(turn)
                    && matches!(how, Health::Pending | Health::Failed)
            });
            let values: BTreeSet<_> = wave.map(|(turn, _)| turn.value.clone()).collect();
            prop_assert!(values.len() <= 1, "a wave of {values:?}");
            // The clusters of the waves before have been healthy, or have failed to become so.
            let unready = self.hub.clusters.iter().filter(|(turn, how)| {
                let name = turn.cluster.as_str();
                **how == Health::Unready
                    && had_reached(turn)
                    && !was_healthy(name)
                    && (!were_in.contains(name) || since(name) < STUCK_LIMIT)
            });
            let unready: Vec<_> = unready.collect();
            prop_assert!(
                unready.is_empty(),
                "a wave began before {unready:?} were healthy"
            );
        }
        for name in self.hub.admitted() {
            let number: usize = name[1..].parse().unwrap();
            let cluster = &mut self.clusters[number];
            let has_it = cluster.sent_to(&reported_progress.revision);
            if cluster.connected && !has_it {
                cluster.sent = Some((reported_progress.revision.clone(), None));
            }
        }
        Ok(())
    }

    /// Checks a step of a rollback: no cluster gets the target, and at most `max_concurrency`
    /// clusters are being rolled back.
    fn went_back(
        &mut self,
        reported_progress: &Progress,
        were_in: &BTreeSet<String>,
    ) -> Result<(), TestCaseError> {
        let gate = self.hub.gate.clone().unwrap();
        let base = reported_progress.base.clone().unwrap();
        prop_assert!(
            gate.back_to.as_ref() == Some(&base) && gate.reach != AdmittedClusters::All,
            "not the way back"
        );
        prop_assert!(
            !self.completed.contains(&reported_progress.revision),
            "it was completed, and is rolled back"
        );
        prop_assert!(
            self.completed.contains(&base) && self.kept.as_ref() == Some(&base),
            "{base} is not kept"
        );
        let admitted: Vec<String> = self
            .hub
            .admitted()
            .into_iter()
            .map(ToOwned::to_owned)
            .collect();
        let turn_of = |name: &str| {
            self.hub
                .clusters
                .keys()
                .find(|turn| turn.cluster.as_str() == name)
                .unwrap()
                .clone()
        };
        let AdmittedClusters::Only(these) = &gate.reach else {
            return Ok(());
        };
        let in_flight = these.iter().filter(|(name, at)| {
            match self.hub.clusters.get(&turn_of(name.as_str())) {
                Some(Health::Pending) => self.hub.now().instant - **at < STUCK_LIMIT,
                Some(Health::Unavailable) => true,
                _ => false,
            }
        });
        let room = self.hub.rollout.max_concurrency.of(self.hub.clusters.len());
        let is_at_work = |name: &str| self.hub.at_work.contains(&ClusterName::from(name));
        let (in_flight, is_new) = (in_flight.count(), |name: &String| {
            !were_in.contains(name) && !is_at_work(name)
        });
        let pending = admitted
            .iter()
            .filter(|name| self.hub.clusters[&turn_of(name)] == Health::Pending);
        prop_assert!(
            !pending.clone().any(is_new) || in_flight <= room,
            "{in_flight} go back, {room} may"
        );
        for name in admitted {
            let cluster = &mut self.clusters[name[1..].parse::<usize>().unwrap()];
            if cluster.connected && !cluster.sent_to(&base) {
                cluster.sent = Some((base.clone(), None));
            }
        }
        Ok(())
    }

    fn take(&mut self, event: &Event) -> Result<(), TestCaseError> {
        match event {
            Event::Applies(number) | Event::Fails(number) | Event::Recovers(number) => {
                let applies = !matches!(event, Event::Fails(_));
                if let Some((_, how)) = &mut self.clusters[*number].sent
                    && (how.is_none() || matches!(event, Event::Recovers(_)))
                {
                    *how = Some(applies);
                }
            }
            Event::TargetClusters(number) => self.clusters[*number].connected = false,
            Event::Comes(number) => self.clusters[*number].connected = true,
            Event::Joins(number, begins_again) => {
                let cluster = &mut self.clusters[*number];
                if !cluster.there && *begins_again {
                    *cluster = Cluster {
                        connected: true,
                        tier: cluster.tier,
                        there: true,
                        ..Cluster::default()
                    };
                } else {
                    cluster.there = true;
                }
            }
            Event::Moves(number, tier) => self.clusters[*number].tier = *tier,
            Event::Leaves(number) => self.clusters[*number].there = false,
            Event::Edit => {
                self.edits += 1;
                self.hub.target = format!("t{}", self.edits + 1);
                self.observe();
                prop_assert!(
                    self.hub.admitted().is_empty(),
                    "an edit went out before it was judged"
                );
            }
            Event::Pause(paused) => self.hub.rollout.paused = *paused,
            Event::Killed { written } => {
                self.step(*written)?;
                self.hub.restart();
                self.hub.check = None;
                self.uptime = 0;
            }
            Event::Wait(seconds) => {
                self.hub.seconds += seconds;
                self.uptime += seconds;
            }
            Event::Budget(budget) => self.hub.rollout.max_failures = *budget,
            Event::RollingBack(reverts) => self.hub.rollout.reverts = *reverts,
            Event::Loses => self.kept = None,
            Event::NeedsApproval(needs) => self.hub.rollout.needs_approval = *needs,
            Event::Approves => self.hub.approve(),
            Event::Checked(holds) => self.check(*holds),
            Event::Healthy(number, is) => self.clusters[*number].unready = !is,
            Event::RuleWindows(has) => self.hub.rollout.windows = minutes("*/3", *has),
            Event::ClusterWindows(number, has) => {
                let name = ClusterName::from(format!("c{number}").as_str());
                self.hub.windows.insert(name, minutes("*/2", *has));
            }
        }
        self.step(true)
    }

    /// The check that is due ends like this.
    fn check(&mut self, holds: bool) {
        let now = self.hub.now().wall;
        let analysis = self.hub.rollout.analysis.as_ref();
        let progress = self.hub.progress.as_ref();
        let due = analysis.zip(progress).and_then(|(analysis, progress)| {
            progress.check_due(analysis, self.hub.check.as_ref(), now)
        });
        if let Some(of) = due {
            let result = if holds {
                Ok(String::new())
            } else {
                Err("bad".to_owned())
            };
            self.hub.check = Some(CheckResult {
                of,
                at: now,
                result,
            });
        }
    }

    /// From here on only time passes. Connected clusters do their work, and half of them fail.
    fn end(&mut self) -> Result<Phase, TestCaseError> {
        self.hub.rollout.paused = false;
        if self
            .clusters
            .iter()
            .all(|cluster| !cluster.connected || !cluster.there)
        {
            self.clusters[0] = Cluster {
                connected: true,
                there: true,
                ..self.clusters[0].clone()
            };
        }
        for _ in 0..4000 {
            self.hub.seconds += 5;
            self.uptime += 5;
            for (number, cluster) in self.clusters.iter_mut().enumerate() {
                // One never becomes healthy.
                cluster.unready &= number == 5;
                // Some never answer.
                if let Some((_, how @ None)) = &mut cluster.sent {
                    *how = (number != 7).then_some(number % 3 != 0);
                }
            }
            self.hub.approve();
            self.check(true);
            self.step(true)?;
            // A cluster that reconnects last is rolled back too, after the rollback has ended.
            let is_settled = self.hub.gate.as_ref().unwrap().is_settled;
            match self.hub.reported_progress().phase {
                Phase::Reverted if !is_settled => {}
                phase @ (Phase::Completed | Phase::Stopped | Phase::Reverted) => return Ok(phase),
                _ => {}
            }
        }
        Err(TestCaseError::fail(format!(
            "it does not end: {:?}",
            self.hub.reported_progress()
        )))
    }
}

/// Whether the rollout was completed before the step.
fn completed_before(before: &Option<Progress>, now: &Progress) -> bool {
    before
        .as_ref()
        .is_some_and(|before| before.revision == now.revision && before.is_completed())
}

/// Windows of one minute at these minutes of each hour, or none.
fn minutes(which: &str, has: bool) -> Windows {
    let window = runnel_api::Window {
        schedule: format!("{which} * * * *"),
        duration_seconds: 60,
        time_zone: "UTC".to_owned(),
    };
    let windows = if has { vec![window] } else { vec![] };
    Windows::read(&windows, "spec.rollout.windows")
}

fn rollouts() -> impl Strategy<Value = Rollout> {
    let portion = prop_oneof![
        (1u64..5).prop_map(Portion::Count),
        (1u64..60).prop_map(Portion::Percent)
    ];
    let flags = any::<[bool; 5]>();
    (portion, 0u64..200, 0u64..4, flags).prop_map(
        |(
            max_concurrency,
            soak,
            max_failures,
            [
                reverts,
                needs_approval,
                has_windows,
                is_checked,
                waits_for_health,
            ],
        )| Rollout {
            max_concurrency,
            order_by: Some("tier".to_owned()),
            soak: Duration::from_secs(soak),
            progress_deadline: STUCK_LIMIT,
            max_failures,
            paused: false,
            reverts,
            history: 0,
            waits_for_health,
            needs_approval,
            windows: minutes("*/3", has_windows),
            analysis: is_checked.then(|| Analysis {
                check: Check::Http {
                    url: "http://checks/".to_owned(),
                },
                interval: Duration::from_secs(30),
                failure_limit: 1,
            }),
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn budget_and_concurrency_are_kept_and_it_always_ends(
        rollout in rollouts(),
        schedule in proptest::collection::vec(happens(), 0..120),
    ) {
        let mut simulated = Simulated::new(rollout);
        for event in &schedule {
            simulated.take(event)?;
        }
        let phase = simulated.end()?;
        if phase == Phase::Stopped {
            let reported_progress = simulated.hub.reported_progress();
            let rollout = &simulated.hub.rollout;
            prop_assert!(
                reported_progress.failed > rollout.max_failures
                    || reported_progress.has_failed_analysis(rollout)
            );
        }
        if phase == Phase::Reverted {
            let base = simulated.hub.reported_progress().base.clone().unwrap();
            for (number, cluster) in simulated.clusters.iter().enumerate() {
                let is_back = cluster.sent.as_ref().is_some_and(|(sent, how)| *sent == base && (how.is_some() || number == 7));
                prop_assert!(!cluster.there || !cluster.connected || is_back, "c{number} is not rolled back");
            }
        }
    }
}
