//! Carries work out: each piece by itself, all that are under way side by side.
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc;

use crate::apply::Member;
use runnel_agent_core::job::{Done, Job};

/// Runs jobs until their sender is gone. The core gives out no more than it wants under way.
pub async fn run(member: Member, mut jobs: mpsc::Receiver<Job>, done: mpsc::Sender<Done>) {
    let mut running = FuturesUnordered::new();
    loop {
        tokio::select! {
            job = jobs.recv() => match job {
                Some(job) => running.push(member.run(job)),
                None => break,
            },
            Some(ended) = running.next() => {
                if done.send(ended).await.is_err() {
                    break;
                }
            }
        }
    }
    // What is under way is finished, for as long as the process's drain lasts; what is cut off then is looked at again by the
    // next process.
    while let Some(ended) = running.next().await {
        let _ = done.try_send(ended);
    }
}
