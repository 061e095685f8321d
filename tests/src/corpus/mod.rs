//! `cargo corpus`: sends every manifest below a folder through a bundle, and compares the copy with what
//! `kubectl apply --server-side` makes of the same manifest in another cluster.
//! `manifest` reads the folder, `lab` has the clusters, `trial` tries one manifest, `normal` compares and
//! `report` prints; `normal` and `report` are pure.

mod lab;
mod manifest;
mod normal;
mod report;
mod trial;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Parser;
use futures::{StreamExt, stream};

use self::lab::CorpusLab;
use self::manifest::{Manifest, Stage};
use self::report::{Finding, Report, Verdict};
use self::trial::Trial;
use crate::demo::{unless_interrupted, with_logs};
use crate::program::{self, INTERRUPTED, sentences};
use crate::progress::Progress;

/// Manifests that are tried at a time.
const AT_ONCE: usize = 10;

/// Sends every manifest below a folder through `kubectl runnel bundle`, `plan` and apply to all members but the last,
/// edits and removes it there, and compares each copy with that of `kubectl apply --server-side` in the last member.
#[derive(Debug, Parser)]
#[command(name = "cargo corpus", bin_name = "cargo corpus")]
pub struct CorpusArguments {
    /// The folder with manifests, YAML or JSON; subdirectories are searched, too.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// The number of member clusters. Runnel writes to all but the last.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=20))]
    members: u16,
}

/// Runs with the arguments of this process, and returns its exit code: 0 if no manifest is different or refused by Runnel
/// only, 1 if one is, if something failed or if the arguments are wrong, 130 when it was interrupted.
pub fn main() -> ExitCode {
    match program::arguments::<CorpusArguments>() {
        Ok(arguments) => program::block_on("cargo corpus", run(arguments)),
        Err(code) => code,
    }
}

async fn run(arguments: CorpusArguments) -> ExitCode {
    let begin = Instant::now();
    let observed = unless_interrupted(async { with_logs(try_all(&arguments).await) }).await;
    match observed {
        Ok(Some(report)) => {
            print!("{}", report.text());
            println!("{} s in all", begin.elapsed().as_secs());
            if report.passes() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        Ok(None) => ExitCode::from(INTERRUPTED),
        Err(error) => {
            eprintln!("cargo corpus failed: {}", sentences(&error));
            ExitCode::FAILURE
        }
    }
}

async fn try_all(arguments: &CorpusArguments) -> Result<Report> {
    let manifests = manifest::read(&arguments.folder)?;
    ensure!(
        !manifests.is_empty(),
        "{}: no manifests",
        arguments.folder.display()
    );
    let lab = CorpusLab::start(arguments.members.into(), &manifests).await?;
    let mut findings = BTreeMap::new();
    for stage in Stage::ALL {
        let chosen: Vec<&Manifest> = manifests.iter().filter(|one| one.stage == stage).collect();
        if stage == Stage::Ordinary {
            lab.make_namespaces(&manifests).await?;
        }
        let _progress = Progress::start(&format!("{} {}", chosen.len(), stage.title()));
        try_stage(&lab, stage, &chosen, &mut findings).await;
    }
    end_kept(&lab, &manifests, &mut findings).await;
    Ok(Report::new(&manifests, findings))
}

/// Tries manifests of different objects at the same time, and those of one object one after the other. What is not equal then
/// is tried again alone, because objects of other manifests may have been the cause.
async fn try_stage(
    lab: &CorpusLab,
    stage: Stage,
    manifests: &[&Manifest],
    findings: &mut BTreeMap<usize, Finding>,
) {
    let mut groups: BTreeMap<String, Vec<&Manifest>> = BTreeMap::new();
    for manifest in manifests {
        groups.entry(manifest.key()).or_default().push(manifest);
    }
    let found = stream::iter(groups.into_values())
        .map(|group| async move {
            let mut findings = Vec::new();
            for manifest in group {
                findings.push((manifest.number, tried(lab, manifest).await));
            }
            findings
        })
        .buffer_unordered(AT_ONCE)
        .collect::<Vec<_>>()
        .await;
    findings.extend(found.into_iter().flatten());
    if stage == Stage::Definitions {
        return;
    }
    for manifest in manifests {
        let is_settled = findings
            .get(&manifest.number)
            .is_some_and(|finding| finding.verdict.is_settled());
        if !is_settled {
            let finding = tried(lab, manifest).await;
            findings.insert(manifest.number, finding);
        }
    }
}

/// Removes the definitions that stayed for their objects.
async fn end_kept(
    lab: &CorpusLab,
    manifests: &[Manifest],
    findings: &mut BTreeMap<usize, Finding>,
) {
    let _progress = Progress::start("removal of the CustomResourceDefinitions");
    let kept = manifests.iter().filter(|manifest| manifest.is_kept);
    let kept: Vec<_> = kept
        .filter_map(|manifest| Some((manifest, findings.get(&manifest.number).cloned()?)))
        .filter(|(_, finding)| finding.verdict == Verdict::Equal)
        .collect();
    let ended = stream::iter(kept)
        .map(|(manifest, finding)| async move {
            let ended = Trial::new(lab, manifest).end(finding).await;
            (manifest.number, ended)
        })
        .buffer_unordered(AT_ONCE)
        .collect::<Vec<_>>()
        .await;
    findings.extend(ended);
}

/// Tries a manifest. What is not equal is printed at once, because the table comes after many minutes.
async fn tried(lab: &CorpusLab, manifest: &Manifest) -> Finding {
    let finding = Trial::new(lab, manifest).run().await;
    if finding.verdict != Verdict::Equal {
        eprintln!("{}: {}", manifest.title(), finding.line());
    }
    finding
}
