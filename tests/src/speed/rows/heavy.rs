//! Row 21: the peak memory of the hub while it sends large objects to several members, some of
//! which read nothing.

use anyhow::{Result, ensure};
use runnel_proto::model::{AgentFrame, HubFrame};
use serde_json::json;

use super::{MIB, reading};
use crate::simulated::{AgentStream, Credentials, hello};
use crate::speed::bar::Bar;
use crate::speed::crowd::Crowd;
use crate::speed::lab::{Lab, PATIENCE};
use crate::speed::process::{at_rest, forget_peak, peak, resident};
use crate::speed::text::noise;
use crate::speed::verdict::Reading;

pub(super) const ROWS: &[u8] = &[21];
const RULE: &str = "heavy";
/// Bytes of text in each object; they do not shrink below three quarters.
const TEXT: usize = 500 * 1024;
const AGENTS: usize = 20;
/// Further members, which read nothing while the others are served.
const STALLED: usize = 4;
/// Number of objects created concurrently, to limit this process's memory.
const AT_ONCE: usize = 16;

pub(super) async fn run(quick: bool) -> Result<Vec<Reading>> {
    let objects = if quick { 200 } else { 1000 };
    let mut lab = Lab::start().await?;
    let bar = Bar::of(objects, "large objects are written");
    for number in 0..objects.div_ceil(AT_ONCE) {
        let names = number * AT_ONCE..((number + 1) * AT_ONCE).min(objects);
        lab.write_all(names.map(|name| (format!("{RULE}-{name:04}"), noise(name as u64, TEXT))))
            .await?;
        (0..AT_ONCE).for_each(|_| bar.step());
    }
    drop(bar);
    let mut members = lab.members(AGENTS + STALLED).await?;
    let others = members.split_off(AGENTS);
    let mut crowd = Crowd::new(false);
    crowd.add(members);
    crowd.up_to_date(PATIENCE).await?;
    let _bar = Bar::spinner("they travel to one member, then to all");
    crowd.expect(objects, 1);
    lab.rule(
        RULE,
        &[&format!("{RULE}-*")],
        json!({"names": ["simulated-00000"]}),
    )
    .await?;
    crowd.reached(PATIENCE).await?;
    lab.applied(RULE, 1).await?;
    at_rest(lab.pid()?).await?;
    let (first, known) = (peak(lab.pid()?)?, resident(lab.pid()?)?);
    forget_peak(lab.pid()?)?;
    let mut slow = stalled(&others).await?;
    crowd.expect(objects, AGENTS - 1);
    lab.rule(RULE, &[&format!("{RULE}-*")], json!({"all": true}))
        .await?;
    crowd.reached(PATIENCE).await?;
    // All of them received data, and the others did not wait for them.
    for line in &mut slow {
        ensure!(
            matches!(line.must().await?, HubFrame::SnapshotBegin(_)),
            "the first frame is another one"
        );
    }
    drop(slow);
    crowd.add(others);
    crowd.up_to_date(PATIENCE).await?;
    lab.applied(RULE, AGENTS + STALLED).await?;
    let then = peak(lab.pid()?)?;
    let (at, contents) = ((objects, "objects of 500 KiB"), (objects * TEXT) as f64);
    Ok(vec![
        reading(
            21,
            "hub memory at its peak",
            at,
            first.max(then) / MIB,
            Some(contents / MIB),
        ),
        reading(
            21,
            "of it for all members but one",
            at,
            (then - known) / MIB,
            None,
        ),
    ])
}

/// Members that request everything and read nothing.
async fn stalled(members: &[Credentials]) -> Result<Vec<AgentStream>> {
    let open = members.iter().map(|member| async move {
        let line = AgentStream::open(member).await?;
        line.send(&AgentFrame::Hello(hello(&member.cluster)));
        line.send(&AgentFrame::AckedRules(Vec::new(), true));
        anyhow::Ok(line)
    });
    futures::future::try_join_all(open).await
}
