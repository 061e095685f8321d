//! The binaries of a Kubernetes control plane: those in `KUBEBUILDER_ASSETS`, or our own build.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use data_encoding::HEXLOWER;

use crate::progress::Progress;

/// The Kubernetes version that `tests/controlplane` builds.
pub const KUBERNETES_VERSION: &str = "1.36.3";

const BINARY: &str = "controlplane";
const PARTS: [&str; 4] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kubectl",
];
const MODULE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/controlplane");
const LINKER_FLAGS: &str = concat!(
    "-s -w",
    " -X k8s.io/component-base/version.gitVersion=v1.36.3",
    " -X k8s.io/component-base/version.gitMajor=1",
    " -X k8s.io/component-base/version.gitMinor=36",
);

/// A folder with the binaries of a control plane and `kubectl`.
#[derive(Clone, Debug)]
pub struct Assets {
    folder: PathBuf,
}

/// The possible locations of the binaries.
#[derive(Clone, Debug)]
pub struct AssetFolders {
    /// A folder with ready binaries (`KUBEBUILDER_ASSETS`); nothing is built where it is set.
    pub given: Option<PathBuf>,
    /// The folder for built binaries.
    pub cache: PathBuf,
    /// The Go command.
    pub go: PathBuf,
}

impl AssetFolders {
    /// Returns the locations from the environment: `KUBEBUILDER_ASSETS`, `XDG_CACHE_HOME` or
    /// `HOME`, and the `go` of the search path.
    ///
    /// # Errors
    /// If there is no cache folder.
    pub fn from_environment() -> Result<Self> {
        Ok(Self {
            given: variable("KUBEBUILDER_ASSETS"),
            cache: user_cache()?.join("runnel"),
            go: "go".into(),
        })
    }
}

impl Assets {
    /// Returns the binaries for this machine. Builds them once, which takes minutes, with a
    /// progress line.
    ///
    /// # Errors
    /// A sentence with what is missing and a hint.
    pub fn find() -> Result<Self> {
        Self::find_in(&AssetFolders::from_environment()?)
    }

    /// As above, for the caller's places.
    ///
    /// # Errors
    /// A sentence with what is missing and a hint.
    pub fn find_in(places: &AssetFolders) -> Result<Self> {
        match &places.given {
            Some(folder) => given(folder),
            None => built(places),
        }
    }

    /// The etcd server.
    #[must_use]
    pub fn etcd(&self) -> PathBuf {
        self.folder.join("etcd")
    }

    /// The Kubernetes API server.
    #[must_use]
    pub fn kube_apiserver(&self) -> PathBuf {
        self.folder.join("kube-apiserver")
    }

    /// The Kubernetes controllers.
    #[must_use]
    pub fn kube_controller_manager(&self) -> PathBuf {
        self.folder.join("kube-controller-manager")
    }

    /// The `kubectl` of the same version.
    #[must_use]
    pub fn kubectl(&self) -> PathBuf {
        self.folder.join("kubectl")
    }
}

pub(crate) fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

fn user_cache() -> Result<PathBuf> {
    variable("XDG_CACHE_HOME")
        .or_else(|| variable("HOME").map(|home| home.join(".cache")))
        .context("set HOME or XDG_CACHE_HOME: the control plane for the tests is built into a cache folder")
}

fn given(folder: &Path) -> Result<Assets> {
    let missing: Vec<&str> = PARTS
        .into_iter()
        .filter(|part| !folder.join(part).is_file())
        .collect();
    if missing.is_empty() {
        return Ok(Assets {
            folder: folder.to_owned(),
        });
    }
    bail!(
        "KUBEBUILDER_ASSETS={} has no {}: point it at a folder that has {}, or unset it to have them built with Go",
        folder.display(),
        missing.join(" and no "),
        PARTS.join(", "),
    )
}

fn built(places: &AssetFolders) -> Result<Assets> {
    let folder = places.cache.join(format!(
        "{BINARY}-{}",
        fingerprint(&["main.go", "go.mod", "go.sum"])?
    ));
    let assets = Assets { folder };
    if assets.folder.is_dir() {
        return Ok(assets);
    }
    fs::create_dir_all(&places.cache)
        .with_context(|| format!("cannot create {}", places.cache.display()))?;
    let _turn = wait_for_turn(&places.cache, BINARY, "the control plane")?;
    // The former holder of the lock may have built it.
    if !assets.folder.is_dir() {
        build(&places.go, &assets.folder)?;
    }
    Ok(assets)
}

/// The digest that identifies a build of the files in `tests/controlplane`.
pub(crate) fn fingerprint(files: &[&str]) -> Result<String> {
    let mut content = ring::digest::Context::new(&ring::digest::SHA256);
    content.update(LINKER_FLAGS.as_bytes());
    for name in files {
        let path = Path::new(MODULE).join(name);
        content
            .update(&fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?);
    }
    Ok(HEXLOWER.encode(&content.finish().as_ref()[..16]))
}

/// Locks `name` in the cache folder, so that one test run at a time builds `what`.
pub(crate) fn wait_for_turn(cache: &Path, name: &str, what: &str) -> Result<File> {
    let path = cache.join(format!("{name}.lock"));
    let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    if file.try_lock().is_err() {
        let _progress =
            Progress::start(&format!("waiting for another test run that builds {what}"));
        file.lock()
            .with_context(|| format!("cannot lock {}", path.display()))?;
    }
    Ok(file)
}

// Built under a temporary name and moved at once: the final name is always complete.
fn build(go: &Path, folder: &Path) -> Result<()> {
    let unfinished = folder.with_extension("unfinished");
    let _ = fs::remove_dir_all(&unfinished);
    fs::create_dir_all(&unfinished)
        .with_context(|| format!("cannot create {}", unfinished.display()))?;
    let what = format!(
        "building the Kubernetes {KUBERNETES_VERSION} control plane once for this machine (about 4 minutes on 2 cores)"
    );
    run_go(go, &["."], &unfinished.join(BINARY), &what)?;
    for part in PARTS {
        symlink(BINARY, unfinished.join(part))?;
    }
    fs::rename(&unfinished, folder).with_context(|| format!("cannot create {}", folder.display()))
}

/// Runs `go build` for a package of `tests/controlplane`, with `what` as the progress line.
pub(crate) fn run_go(go: &Path, package: &[&str], binary: &Path, what: &str) -> Result<()> {
    let mut command = Command::new(go);
    command
        .current_dir(MODULE)
        .env("CGO_ENABLED", "0")
        .env_remove("GOFLAGS");
    command
        .args([
            "build",
            "-trimpath",
            "-buildvcs=false",
            "-ldflags",
            LINKER_FLAGS,
            "-o",
        ])
        .arg(binary)
        .args(package);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let child = match command.spawn() {
        Err(error) if error.kind() == ErrorKind::NotFound => bail!(
            "the tests run on a real Kubernetes control plane: install Go 1.26 or newer (https://go.dev/dl) to have \
             it built, or set KUBEBUILDER_ASSETS to a folder that has {}",
            PARTS.join(", "),
        ),
        started => started.context("cannot run go")?,
    };
    let _progress = Progress::start(what);
    let output = child.wait_with_output().context("cannot wait for go")?;
    if !output.status.success() {
        let printed = String::from_utf8_lossy(&output.stderr);
        bail!(
            "go build of the control plane in {MODULE} failed ({}):\n{}",
            output.status,
            printed.trim_end()
        );
    }
    Ok(())
}
