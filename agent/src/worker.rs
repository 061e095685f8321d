//! Runs jobs, all of them concurrently.
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc;

use crate::apply::Member;
use runnel_agent_core::job::{Done, Job};

/// Runs jobs until their sender is dropped. The core limits the jobs under way.
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
    // Jobs under way finish while the drain lasts. The next process reads the copies of interrupted
    // jobs again.
    while let Some(ended) = running.next().await {
        let _ = done.try_send(ended);
    }
}
