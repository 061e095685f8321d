//! A joined fleet without rules, to try things on.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::local::{LocalFleet, LocalOptions};
use super::narrate::Narrator;
use super::{DemoOutcome, unless_interrupted, with_logs};
use crate::cargo;
use crate::control_plane::write_private;
use crate::restartable::Restartable;
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
    options: LocalOptions,
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
    let mut folder = match Folder::claim(&folder.context("no folder")?, options.members) {
        Ok(folder) => folder,
        Err(error) => return Ok(DemoOutcome::Refused(format!("{error:#}"))),
    };
    let mut ready = false;
    let kept = unless_interrupted(async {
        narrator.title("Runnel: a joined fleet without rules");
        let fleet = LocalFleet::start(narrator, options).await?;
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
    narrator.pause();
    narrator.title("fleet ready");
    narrator.pause();
    for line in invitation(folder, fleet) {
        narrator.title(format!("    {line}").trim_end());
    }
    narrator.pause();
    narrator.say("Ctrl-C ends and removes everything.");
}

/// Returns what a person needs to use the fleet: the environment, commands to try, and for each
/// program its log and metrics.
fn invitation(folder: &Folder, fleet: &LocalFleet) -> Vec<String> {
    let kubectl = fleet.assets.kubectl();
    let kubectl = kubectl.parent().unwrap_or(&kubectl);
    let search_path = format!("{}:{}", kubectl.display(), fleet.binaries.folder.display());
    let root = fs::canonicalize(cargo::ROOT).unwrap_or_else(|_| cargo::ROOT.into());
    let example = root.join("deploy/examples/seed-rule.yaml");
    let mut lines = vec![
        format!("export PATH={}:$PATH", quoted(&search_path)),
        format!(
            "export KUBECONFIG={}",
            quoted(&folder.kubeconfig("hub").display().to_string())
        ),
        String::new(),
        format!(
            "kubectl apply -f {}",
            quoted(&example.display().to_string())
        ),
        "kubectl get deliveries -A".to_owned(),
        "kubectl runnel status -A".to_owned(),
        String::new(),
    ];
    let hub = fleet.stage.hub().replicas().iter();
    lines
        .extend(hub.flat_map(|replica| program("hub", None, replica.process(), replica.ops_url())));
    lines.extend(fleet.stage.agents().iter().flat_map(|agent| {
        let kubeconfig = folder.kubeconfig(agent.member());
        program(
            agent.member(),
            Some(&kubeconfig),
            agent.process(),
            agent.ops_url(),
        )
    }));
    lines
}

fn program(
    name: &str,
    kubeconfig: Option<&Path>,
    process: &Restartable,
    ops_url: &str,
) -> Vec<String> {
    let kubeconfig = kubeconfig.map(|path| ("kubeconfig", path.display().to_string()));
    let rows = kubeconfig.into_iter().chain([
        ("log", process.log().display().to_string()),
        ("metrics", format!("{ops_url}/metrics")),
    ]);
    rows.enumerate()
        .map(|(row, (what, value))| {
            let name = if row == 0 { name } else { "" };
            format!("{name:<12} {what:<11} {value}")
        })
        .collect()
}

/// Quotes a word for a shell, if it needs quotes.
fn quoted(word: &str) -> String {
    let is_plain =
        |character: char| character.is_ascii_alphanumeric() || "-_./:+@,".contains(character);
    if word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
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

    fn kubeconfig(&self, cluster: &str) -> PathBuf {
        self.path.join(format!("{cluster}.kubeconfig"))
    }

    fn write(&mut self, fleet: &LocalFleet) -> Result<()> {
        for cluster in fleet.clusters.all() {
            let path = self.kubeconfig(&cluster.name);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_with_spaces_or_quotes_are_quoted() {
        assert_eq!(quoted("a/b-1.yaml"), "a/b-1.yaml");
        assert_eq!(quoted("my dir/it's"), r"'my dir/it'\''s'");
    }

    #[test]
    fn files_of_the_user_survive_the_folder() -> Result<()> {
        let scratch = Scratch::new("keep")?;
        let own = scratch.path().join("notes.txt");
        let mut folder = Folder::claim(scratch.path(), 1)?;
        fs::write(&own, "mine")?;
        let made = folder.kubeconfig("hub");
        fs::write(&made, "")?;
        folder.written.push(made.clone());
        assert!(
            Folder::claim(scratch.path(), 1).is_err(),
            "a second demo uses the folder"
        );
        drop(folder);
        assert!(own.exists() && !made.exists() && !scratch.path().join(LOCK).exists());
        fs::write(scratch.path().join("member-1.kubeconfig"), "")?;
        assert!(
            Folder::claim(scratch.path(), 1).is_err(),
            "a file of the user is overwritten"
        );
        Ok(())
    }
}
