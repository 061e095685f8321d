//! Rows 7 and 16: what connected agents that are sent nothing cost the hub in memory, as a slope, and its API server.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher};
use runnel_transport::identity::MemberKey;

use super::reading;
use crate::fleet::NAMESPACE;
use crate::simulated::AgentStream;
use crate::speed::bar::Bar;
use crate::speed::crowd::Crowd;
use crate::speed::lab::{BareHub, Lab, PATIENCE};
use crate::speed::process::{at_rest, resident};
use crate::speed::verdict::Reading;
use crate::wait::eventually;

pub(super) const ROWS: &[u8] = &[7, 16];
const KIB: f64 = 1024.0;
/// Number of members that renew their certificates.
const RENEWALS: usize = 50;
/// Longer than the interval in which the hub checks every member; a quarter of it with small sizes.
const CALM: Duration = Duration::from_secs(20);

/// A fresh hub: memory of former rows would be reused without cost.
pub(super) async fn run(quick: bool) -> Result<Vec<Reading>> {
    let sizes: &[usize] = if quick {
        &[100, 300, 500]
    } else {
        &[1000, 4000, 10_000]
    };
    let mut lab = Lab::start().await?;
    let (mut runnel, mut quiets) = (Vec::new(), Vec::new());
    let mut crowd = Crowd::new(false);
    for &size in sizes {
        let members = lab.members(size).await?;
        let bar = Bar::spinner("agents connect to the hub");
        crowd.add(members.into_iter().skip(crowd.len()));
        crowd.up_to_date(PATIENCE).await?;
        at_rest(lab.pid()?).await?;
        drop(bar);
        runnel.push(resident(lab.pid()?)?);
        if runnel.len() == 1 && !quick {
            quiets.extend(quiet(&lab, crowd.len(), (3.0, CALM)).await?);
        }
    }
    quiets.extend(
        quiet(
            &lab,
            crowd.len(),
            if quick { (0.2, CALM / 4) } else { (10.0, CALM) },
        )
        .await?,
    );
    quiets.push(renewals(&mut lab, crowd.len(), if quick { CALM / 4 } else { CALM }).await?);
    // Their sockets are needed for the other ones.
    drop(crowd);
    let bare = BareHub::start().await?;
    let mut bares = Vec::new();
    let mut crowd = Crowd::new(true);
    for &size in sizes {
        let _bar = Bar::spinner("agents connect to the bare hub");
        crowd.add(bare.members(crowd.len()..size)?);
        crowd.up_to_date(PATIENCE).await?;
        at_rest(bare.pid()?).await?;
        bares.push(resident(bare.pid()?)?);
    }
    let mut readings = readings(sizes, &runnel, &bares);
    readings.extend(quiets);
    Ok(readings)
}

/// Waits until the hub has written every status about new agents: it writes nothing for this long.
pub(super) async fn calm(lab: &Lab, time: Duration) -> Result<()> {
    let _bar = Bar::spinner("the hub writes pending statuses");
    let wait = eventually("a hub that writes nothing", PATIENCE, async || {
        let mark = lab.fleet.hub().mark();
        tokio::time::sleep(time).await;
        Ok((lab.hub_writes(mark)? == 0).then_some(()))
    });
    wait.await
}

/// Row 16. Leases are not in the audit log: a watch counts how often the hub's own changes.
async fn quiet(
    lab: &Lab,
    agents: usize,
    (minutes, before): (f64, Duration),
) -> Result<Vec<Reading>> {
    let time = Duration::from_secs_f64(60.0 * minutes);
    calm(lab, before).await?;
    let leases: Api<Lease> = Api::namespaced(lab.client.clone(), NAMESPACE);
    let mut events = std::pin::pin!(watcher(leases, watcher::Config::default()).default_backoff());
    let (mark, mut renewals) = (lab.fleet.hub().mark(), 0);
    let counting = async {
        while let Some(event) = events.next().await {
            renewals += usize::from(matches!(event, Ok(watcher::Event::Apply(_))));
        }
    };
    tokio::select! {
        () = Bar::wait(time, "nothing happens") => {}
        () = counting => {}
    }
    let writes = lab.hub_writes(mark)?;
    lab.shows_hub_writes()?;
    let at = (agents, "agents");
    Ok(vec![
        reading(16, "hub writes a minute", at, writes as f64 / minutes, None),
        reading(
            16,
            "Lease writes a minute",
            at,
            renewals as f64 / minutes,
            None,
        ),
    ])
}

/// Row 16, for this many agents: no certificate is due while a row runs, so some other agents renew
/// theirs early and reconnect with it. Then the former key is retired.
async fn renewals(lab: &mut Lab, agents: usize, time: Duration) -> Result<Reading> {
    let members = lab.members(agents + RENEWALS).await?.split_off(agents);
    let mut lines = Vec::new();
    for member in &members {
        lines.push(AgentStream::greeted(member, Vec::new()).await?);
    }
    calm(lab, time).await?;
    let mark = lab.fleet.hub().mark();
    for (member, line) in members.iter().zip(&mut lines) {
        let key = Arc::new(MemberKey::generate()?);
        let request = key.certificate_request()?;
        let renewed = member.renew(key, request).await?;
        *line = AgentStream::greeted(&renewed, Vec::new()).await?;
    }
    calm(lab, time).await?;
    let writes = lab.hub_writes(mark)? as f64 / members.len() as f64;
    Ok(reading(
        16,
        "hub writes per certificate",
        (members.len(), "renewals"),
        writes,
        None,
    ))
}

fn readings(sizes: &[usize], runnel: &[f64], bare: &[f64]) -> Vec<Reading> {
    let mut readings = Vec::new();
    for ((size, runnel), bare) in sizes.iter().zip(runnel).zip(bare) {
        let whole = reading(
            7,
            "memory in all",
            (*size, "agents"),
            runnel / KIB / KIB,
            Some(bare / KIB / KIB),
        );
        readings.push(whole);
    }
    let (Some(first), Some(last)) = (sizes.first(), sizes.last()) else {
        return readings;
    };
    let slope = |memory: &[f64]| match memory {
        [few, .., many] => (many - few) / (last - first) as f64 / KIB,
        _ => 0.0,
    };
    readings.push(reading(
        7,
        "memory per idle agent",
        (*last, "agents"),
        slope(runnel),
        Some(slope(bare)),
    ));
    // Whether the last agents need more than the first ones.
    let step = |at: usize| match (sizes.get(at..at + 2), runnel.get(at..at + 2)) {
        (Some([few, many]), Some([before, after])) => {
            Some((after - before) / (many - few) as f64 / KIB)
        }
        _ => None,
    };
    if let Some((of_last, of_first)) = sizes.len().checked_sub(2).and_then(step).zip(step(0)) {
        readings.push(reading(
            7,
            "the last of them beside the first",
            (*last, "agents"),
            of_last,
            Some(of_first),
        ));
    }
    readings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slope_leaves_out_what_a_hub_needs_without_agents() {
        let kib = |value: f64| value * KIB;
        let all = readings(
            &[10, 20, 30],
            &[kib(1500.0), kib(2000.0), kib(2500.0)],
            &[kib(400.0), kib(800.0), kib(1200.0)],
        );
        let of = |what: &str| {
            all.iter()
                .find(|reading| reading.what == what)
                .map(|it| (it.runnel, it.bare))
        };
        assert_eq!(of("memory per idle agent"), Some((50.0, Some(40.0))));
        assert_eq!(
            of("the last of them beside the first"),
            Some((50.0, Some(50.0)))
        );
        assert_eq!(all.len(), 5);
    }
}
