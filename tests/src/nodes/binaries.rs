//! The binary of all parts of a node, and the image that every pod needs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{system, text};
use crate::assets::{AssetFolders, KUBERNETES_VERSION, fingerprint, run_go, wait_for_turn};
use crate::scratch::Scratch;

const NAME: &str = "node";
const FILES: [&str; 5] = ["main.go", "nodes.go", "pause/main.go", "go.mod", "go.sum"];
const IMAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/images");
/// The sandbox image of pods; it is not pulled.
pub(crate) const PAUSE_IMAGE: &str = "runnel.test/pause:1";

/// The binaries of a node.
#[derive(Clone, Debug)]
pub struct NodeBinaries {
    /// The control plane, kubelet, kube-proxy, kube-scheduler and kubectl, by the first argument.
    pub node: PathBuf,
    /// The archive of the sandbox image.
    pub pause: PathBuf,
}

/// Returns the binaries for this machine. Builds them once, which takes minutes.
///
/// # Errors
/// A sentence with what is missing and a hint.
pub fn find() -> Result<NodeBinaries> {
    let places = AssetFolders::from_environment()?;
    let folder = places
        .cache
        .join(format!("{NAME}-{}", fingerprint(&FILES)?));
    let binaries = NodeBinaries {
        node: folder.join(NAME),
        pause: folder.join("pause.tar"),
    };
    if folder.is_dir() {
        return Ok(binaries);
    }
    fs::create_dir_all(&places.cache)
        .with_context(|| format!("cannot create {}", places.cache.display()))?;
    let _turn = wait_for_turn(&places.cache, NAME, "the node")?;
    if !folder.is_dir() {
        build(&places.go, &folder)?;
    }
    Ok(binaries)
}

// Built under a temporary name and moved at once: the final name is always complete.
fn build(go: &Path, folder: &Path) -> Result<()> {
    let unfinished = folder.with_extension("unfinished");
    let _ = fs::remove_dir_all(&unfinished);
    fs::create_dir_all(&unfinished)
        .with_context(|| format!("cannot create {}", unfinished.display()))?;
    let what = format!(
        "building a Kubernetes {KUBERNETES_VERSION} node once for this machine (about 1 minute on 2 cores after the control \
         plane, else 5)"
    );
    run_go(go, &["-tags", "nodes", "."], &unfinished.join(NAME), &what)?;
    run_go(
        go,
        &["./pause"],
        &unfinished.join("pause"),
        "building the image of the pause container",
    )?;
    pause_image(&unfinished)?;
    fs::rename(&unfinished, folder).with_context(|| format!("cannot create {}", folder.display()))
}

fn pause_image(folder: &Path) -> Result<()> {
    let (containerfile, folder) = (format!("{IMAGES}/Containerfile"), text(folder)?);
    // A separate storage, so that nothing stays in that of the machine.
    let storage = Scratch::new("pause")?;
    let (root, run) = (
        format!("{}/root", text(storage.path())?),
        format!("{}/run", text(storage.path())?),
    );
    let own = [
        "--root",
        &root,
        "--runroot",
        &run,
        "--storage-driver",
        "vfs",
    ];
    let build = [
        "bud",
        "--quiet",
        "--isolation",
        "chroot",
        "--format",
        "docker",
        "--file",
        &containerfile,
    ];
    let what = [
        "--build-arg",
        "PROGRAM=pause",
        "--build-arg",
        "VERSION=1",
        "--tag",
        PAUSE_IMAGE,
        folder,
    ];
    system("buildah", &[&own[..], &build[..], &what[..]].concat())?;
    let archive = format!("docker-archive:{folder}/pause.tar:{PAUSE_IMAGE}");
    system(
        "buildah",
        &[&own[..], &["push", "--quiet", PAUSE_IMAGE, &archive]].concat(),
    )?;
    Ok(())
}
