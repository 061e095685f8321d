//! A joined fleet without rules, to try things on.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::local::LocalFleet;
use super::narrate::Narrator;
use super::{DemoOutcome, unless_interrupted, with_logs};
use crate::control_plane::write_private;
use crate::scratch::Scratch;

const LOCK: &str = ".runnel-demo.lock";
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Starts the fleet, writes the kubeconfigs, prints `fleet ready`, and waits until it is
/// interrupted.
///
/// # Errors
/// When the fleet does not start, or a part of it ends by itself.
pub async fn run(
    narrator: &mut Narrator,
    members: usize,
    folder: Option<&Path>,
) -> Result<DemoOutcome> {
    let scratch = if folder.is_none() {
        Some(Scratch::new("fleet")?)
    } else {
        None
    };
    let folder = folder
        .map(Path::to_owned)
        .or(scratch.as_ref().map(|own| own.path().to_owned()));
    let mut folder = match Folder::claim(&folder.context("no folder")?, members) {
        Ok(folder) => folder,
        Err(error) => return Ok(DemoOutcome::Refused(format!("{error:#}"))),
    };
    let mut ready = false;
    let kept = unless_interrupted(async {
        narrator.title("Runnel: a joined fleet without rules");
        let fleet = LocalFleet::start(narrator, members).await?;
        folder.write(&fleet)?;
        invite(narrator, &folder, &fleet);
        ready = true;
        loop {
            with_logs(fleet.stage.check())?;
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    });
    let ended: Option<()> = kept.await?;
    debug_assert!(ended.is_none(), "a kept fleet ends when it is interrupted");
    Ok(if ready {
        DemoOutcome::Kept
    } else {
        DemoOutcome::Interrupted
    })
}

fn invite(narrator: &Narrator, folder: &Folder, fleet: &LocalFleet) {
    let kubectl = if on_search_path("kubectl") {
        "kubectl".into()
    } else {
        fleet.assets.kubectl()
    };
    let command = format!(
        "{} --kubeconfig {}",
        kubectl.display(),
        folder.path.join("hub.kubeconfig").display()
    );
    narrator.pause();
    narrator.title("fleet ready");
    narrator.pause();
    narrator.title(&format!("    {command} get member"));
    narrator.title(&format!(
        "    {command} apply -f deploy/examples/seed-rule.yaml"
    ));
    narrator.pause();
    narrator.say("Ctrl-C ends and removes everything.");
}

fn on_search_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// The user's folder while the fleet runs; written files are removed with it.
struct Folder {
    path: PathBuf,
    made: bool,
    written: Vec<PathBuf>,
    _lock: File,
}

impl Folder {
    fn claim(path: &Path, members: usize) -> Result<Self> {
        let made = !path.exists();
        fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))?;
        let path = fs::canonicalize(path)?;
        let lock_path = path.join(LOCK);
        let ours = lock_path.exists();
        let taken = kubeconfigs(members)
            .map(|name| path.join(name))
            .find(|file| file.exists());
        if let Some(taken) = taken.filter(|_| !ours) {
            bail!(
                "{} is already there: choose another --dir, or remove it",
                taken.display()
            );
        }
        let lock = File::create(&lock_path)
            .with_context(|| format!("cannot write to {}", path.display()))?;
        if lock.try_lock().is_err() {
            bail!(
                "{} belongs to a demo that is still running: choose another --dir, or end it",
                path.display()
            );
        }
        Ok(Self {
            path,
            made,
            written: vec![lock_path],
            _lock: lock,
        })
    }

    fn write(&mut self, fleet: &LocalFleet) -> Result<()> {
        for cluster in fleet.clusters.all() {
            let path = self.path.join(format!("{}.kubeconfig", cluster.name));
            self.written.push(path.clone());
            write_private(&path, &fs::read_to_string(&cluster.kubeconfig)?)?;
        }
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        for path in &self.written {
            let _ = fs::remove_file(path);
        }
        if self.made {
            // Only if it is empty: files of the user are kept.
            let _ = fs::remove_dir(&self.path);
        }
    }
}

fn kubeconfigs(members: usize) -> impl Iterator<Item = String> {
    let members = (1..=members).map(|number| format!("member-{number}.kubeconfig"));
    std::iter::once("hub.kubeconfig".to_owned()).chain(members)
}
