//! Rows 1, 3, 5, 6 and 13 on a hub with three real members.

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{GAP, of_each_sample, reading};
use crate::control_plane::{ControlPlane, client_of};
use crate::fleet::Fleet;
use crate::speed::bar::Bar;
use crate::speed::bare;
use crate::speed::lab::{Lab, PATIENCE, SOURCES, make_namespace};
use crate::speed::process::at_rest;
use crate::speed::sample::Sample;
use crate::speed::seen::{WatchedEvent, WatchedEvents};
use crate::speed::text::noise;
use crate::speed::verdict::{Reading, percentile};

pub(super) const ROWS: &[u8] = &[1, 3, 5, 6, 13];
const MEMBERS: usize = 3;
/// The bare relay's namespace, in the hub and in the members.
const BARE: &str = "bare";
const EDITED: &str = "edited";
const RULE: &str = "many";
/// Applies at once in one member: as many as an agent has under way.
const AT_ONCE: usize = runnel_agent_core::reconciler::PARALLEL;

/// Rows 1 and 6 are about the hub, which sees no difference between kinds.
const ROWS_OF_KINDS: &[u8] = &[3, 5, 13];

pub(super) async fn run(rows: &[u8], quick: bool) -> Result<Vec<Reading>> {
    of_each_sample(rows, quick, ROWS_OF_KINDS, async |sample| {
        run_with(sample, rows, quick).await
    })
    .await
}

async fn run_with(sample: Sample, rows: &[u8], quick: bool) -> Result<Vec<Reading>> {
    let stage = RealStage::start(sample).await?;
    let mut readings = Vec::new();
    if rows.contains(&1) || rows.contains(&3) {
        readings.extend(stage.edits(if quick { 12 } else { 100 }).await?);
    }
    if [5, 6, 13].iter().any(|row| rows.contains(row)) {
        let (objects, rounds) = if quick { (400, 2) } else { (1000, 5) };
        readings.extend(stage.many(objects, rounds).await?);
    }
    if rows.contains(&13) {
        readings.extend(stage.drift(if quick { 20 } else { 100 }).await?);
    }
    Ok(readings)
}

struct RealStage {
    lab: Lab,
    members: Vec<Client>,
    /// Clients of the members with the rights of an ordinary program, for the bare ones.
    bare: Vec<Client>,
    seen: Vec<WatchedEvents>,
    _watches: JoinSet<()>,
}

impl RealStage {
    async fn start(sample: Sample) -> Result<Self> {
        let options = Lab::options_with_members(sample, MEMBERS);
        let lab = Lab::of(Fleet::start(options).await?)
            .await?
            .distributing(sample)
            .await?;
        let members =
            try_join_all((1..=MEMBERS).map(|number| lab.fleet.member(number).client())).await?;
        make_namespace(&lab.client, BARE).await?;
        for member in &members {
            make_namespace(member, SOURCES).await?;
            make_namespace(member, BARE).await?;
        }
        let bare = (1..=MEMBERS).map(|number| ordinary_client(lab.fleet.member(number), sample));
        let bare = try_join_all(bare).await?;
        let mut watches = JoinSet::new();
        let seen = members
            .iter()
            .map(|member| WatchedEvents::of(member.clone(), sample, &mut watches))
            .collect();
        Ok(Self {
            lab,
            members,
            bare,
            seen,
            _watches: watches,
        })
    }

    /// What follows the size in the table.
    fn at(&self, what: &str) -> String {
        format!("{what}{}", self.lab.sample.suffix())
    }

    fn api(&self, client: &Client, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(client.clone(), namespace, &self.lab.sample.api())
    }

    fn marks(&self) -> Vec<usize> {
        self.seen.iter().map(WatchedEvents::mark).collect()
    }

    /// The time at which the last member has shown this many objects of the namespace with this
    /// prefix of name and value.
    async fn shown(
        &self,
        marks: &[usize],
        count: usize,
        what: (&str, &str, &str),
    ) -> Result<Instant> {
        let (namespace, name, value) = what;
        let each = self.seen.iter().zip(marks).map(|(seen, mark)| {
            // A restarted watch shows everything again.
            let mut names = BTreeSet::new();
            seen.count(*mark, count, PATIENCE, move |event| {
                let is = event.namespace == namespace
                    && event.name.starts_with(name)
                    && event.value.starts_with(value);
                is && names.insert(event.name.clone())
            })
        });
        try_join_all(each)
            .await?
            .into_iter()
            .max()
            .context("no members")
    }

    /// Rows 1 and 3: one source is edited again and again, by turns with another one that a bare relay sees to.
    async fn edits(&self, edits: usize) -> Result<Vec<Reading>> {
        let relay = bare::relay(
            self.lab.client.clone(),
            self.bare.clone(),
            self.lab.sample,
            BARE.to_owned(),
        );
        let mut tasks = JoinSet::new();
        tasks.spawn(relay);
        self.lab
            .rule(EDITED, &[EDITED], json!({"all": true}))
            .await?;
        for namespace in [SOURCES, BARE] {
            self.edit(namespace, "first").await?;
        }
        tokio::time::sleep(GAP * 2).await;
        let bar = Bar::of(edits, "edits, in turns for Runnel and for a bare relay");
        let mark = self.lab.fleet.hub().mark();
        let (mut runnel, mut bare) = (Vec::new(), Vec::new());
        for number in 0..edits {
            runnel.push(self.edit(SOURCES, &format!("edit {number}.")).await?);
            tokio::time::sleep(GAP / 2).await;
            bare.push(self.edit(BARE, &format!("edit {number}.")).await?);
            tokio::time::sleep(GAP / 2).await;
            bar.step();
        }
        tokio::time::sleep(GAP * 2).await;
        let writes = self.lab.hub_writes(mark)?;
        ensure!(
            writes >= edits,
            "the audit log shows {writes} writes of the hub for {edits} edits, each of which it must tell"
        );
        let writes = writes as f64 / edits as f64;
        self.lab.delete_rule(EDITED).await?;
        let at = (MEMBERS, &*self.at("members"));
        let of = |share: f64| (percentile(&runnel, share), Some(percentile(&bare, share)));
        let ((p50, bare_p50), (p99, bare_p99)) = (of(0.5), of(0.99));
        Ok(vec![
            reading(1, "hub writes per edit", at, writes, None),
            reading(3, "edit to last copy, p50", at, p50, bare_p50).sampled(&runnel, &bare),
            reading(3, "edit to last copy, p99", at, p99, bare_p99).sampled(&runnel, &bare),
        ])
    }

    /// Milliseconds from the edit to the watch of the last member.
    async fn edit(&self, namespace: &str, value: &str) -> Result<f64> {
        let api = self.api(&self.lab.client, namespace);
        let (marks, begin) = (self.marks(), Instant::now());
        api.patch(
            EDITED,
            &PatchParams::apply("speed").force(),
            &Patch::Apply(self.lab.sample.object(EDITED, value)),
        )
        .await?;
        let last = self.shown(&marks, 1, (namespace, EDITED, value)).await?;
        Ok(milliseconds(begin, last))
    }

    /// Rows 5 and 6: many objects for members that have none of them, by turns with a bare apply loop.
    async fn many(&self, objects: usize, rounds: usize) -> Result<Vec<Reading>> {
        let names = (0..objects).map(|number| format!("{RULE}-{number:04}"));
        let copies: Vec<(String, Value)> = names
            .clone()
            .enumerate()
            .map(|(number, name)| (name.clone(), self.lab.sample.object(&name, &text(number))))
            .collect();
        self.lab
            .write_all(names.enumerate().map(|(number, name)| (name, text(number))))
            .await?;
        let bar = Bar::of(
            rounds,
            "many objects, in turns by Runnel and by a bare apply loop",
        );
        let (mut runnel, mut bare, mut observed) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..rounds {
            if round > 0 {
                self.lab.delete_rule(RULE).await?;
            }
            let namespace = format!("{BARE}-{round}");
            for member in &self.members {
                make_namespace(member, &namespace).await?;
            }
            // The order alternates.
            if round % 2 == 1 {
                bare.push(self.bare_many(&namespace, &copies).await?);
            }
            self.rest().await?;
            let (marks, begin) = (self.marks(), Instant::now());
            self.lab
                .rule(RULE, &[&format!("{RULE}-*")], json!({"all": true}))
                .await?;
            let last = self.shown(&marks, objects, (SOURCES, RULE, "")).await?;
            runnel.push(milliseconds(begin, last));
            self.lab.applied(RULE, MEMBERS).await?;
            observed.push(milliseconds(last, Instant::now()));
            if round % 2 == 0 {
                bare.push(self.bare_many(&namespace, &copies).await?);
            }
            bar.step();
        }
        let at = (objects, &*self.at("objects to 3 members"));
        Ok(vec![
            reading(5, "all copies present", at, 0.0, None).median_of(&runnel, &bare),
            reading(6, "last copy to status, p50", at, 0.0, None).median_of(&observed, &[]),
        ])
    }

    async fn bare_many(&self, namespace: &str, copies: &[(String, Value)]) -> Result<f64> {
        self.rest().await?;
        let (marks, begin) = (self.marks(), Instant::now());
        bare::apply_all(&self.bare, self.lab.sample, namespace, copies, AT_ONCE).await?;
        Ok(milliseconds(
            begin,
            self.shown(&marks, copies.len(), (namespace, RULE, ""))
                .await?,
        ))
    }

    /// Row 13: a copy is edited in a member and corrected, alternating with one of a bare keeper.
    async fn drift(&self, edits: usize) -> Result<Vec<Reading>> {
        let member = self.members.first().context("no members")?;
        let client = self.bare.first().context("no members")?;
        let kept = "kept";
        make_namespace(member, kept).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(bare::keep(
            client.clone(),
            self.lab.sample,
            kept.to_owned(),
            (EDITED, "right"),
        ));
        self.restored(member, (kept, EDITED, "right"), "first")
            .await?;
        let bar = Bar::of(
            edits,
            "foreign edits, in turns of Runnel's copies and of a bare keeper's",
        );
        let (mut runnel, mut bare) = (Vec::new(), Vec::new());
        for number in 0..edits {
            // Another copy each time: the agent backs off from a copy that is changed again and
            // again.
            let name = format!("{RULE}-{number:04}");
            runnel.push(
                self.restored(member, (SOURCES, &name, &text(number)), "foreign")
                    .await?,
            );
            bare.push(
                self.restored(
                    member,
                    (kept, EDITED, "right"),
                    &format!("foreign {number}"),
                )
                .await?,
            );
            bar.step();
        }
        let at = (edits, &*self.at("edits"));
        let of = |share: f64| (percentile(&runnel, share), Some(percentile(&bare, share)));
        let ((p50, bare_p50), (p99, bare_p99)) = (of(0.5), of(0.99));
        Ok(vec![
            reading(13, "foreign edit to restored, p50", at, p50, bare_p50).sampled(&runnel, &bare),
            reading(13, "foreign edit to restored, p99", at, p99, bare_p99).sampled(&runnel, &bare),
        ])
    }

    /// Milliseconds from a foreign edit to the watch that shows the right value again.
    async fn restored(
        &self,
        member: &Client,
        what: (&str, &str, &str),
        wrong: &str,
    ) -> Result<f64> {
        let (namespace, name, right) = what;
        let seen = self.seen.first().context("no members")?;
        let api = self.api(member, namespace);
        let (mark, begin) = (seen.mark(), Instant::now());
        let change = self.lab.sample.object(name, wrong);
        api.patch(
            name,
            &PatchParams::apply("somebody").force(),
            &Patch::Apply(change),
        )
        .await?;
        let mut changed = false;
        let is = |event: &WatchedEvent| {
            let same = event.namespace == namespace && event.name == name;
            changed |= same && event.value == wrong;
            same && changed && event.value == right
        };
        Ok(milliseconds(
            begin,
            seen.count(mark, 1, PATIENCE, is).await?,
        ))
    }

    /// Waits until hub and agents are idle.
    async fn rest(&self) -> Result<()> {
        at_rest(self.lab.pid()?).await?;
        for number in 1..=MEMBERS {
            at_rest(self.lab.fleet.agent_process(number).pid()?).await?;
        }
        Ok(())
    }
}

/// Returns a client of a ServiceAccount that may write objects of this kind in all namespaces: no program runs as an
/// administrator, for whom no role is looked up.
async fn ordinary_client(member: &ControlPlane, sample: Sample) -> Result<Client> {
    let (resource, account) = (sample.resource(), format!("--serviceaccount={BARE}:{BARE}"));
    let verbs = "--verb=get,list,watch,create,patch";
    member
        .kubectl(&["create", "serviceaccount", BARE, "--namespace", BARE])
        .await?;
    let role = ["create", "clusterrole", BARE, verbs, "--resource", resource];
    member.kubectl(&role).await?;
    let role = format!("--clusterrole={BARE}");
    member
        .kubectl(&["create", "clusterrolebinding", BARE, &role, &account])
        .await?;
    client_of(&member.token_kubeconfig(BARE, BARE).await?).await
}

/// 1 KiB that is another one for each object and does not compress.
fn text(number: usize) -> String {
    noise(number as u64, 1024)
}

fn milliseconds(begin: Instant, end: Instant) -> f64 {
    end.saturating_duration_since(begin).as_secs_f64() * 1000.0
}
