//! Backups of a cluster, and clusters that are restored from one.
//! A backup is etcd's folder, copied while etcd is stopped. A restore replaces it, as `etcdutl
//! snapshot restore` does: versions go back too.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{ControlPlane, GRACE};

/// The former state of a cluster.
#[derive(Clone, Debug)]
pub struct Backup(PathBuf);

impl ControlPlane {
    /// Takes a backup, for which everything stops for a few seconds.
    ///
    /// # Errors
    /// When a part cannot be ended or started, or a file not be copied.
    pub async fn back_up(&self, name: &str) -> Result<Backup> {
        let kept = self.folder().join("backups").join(name);
        self.rest().await?;
        copy(&self.folder().join("etcd"), &kept)?;
        self.launch().await?;
        Ok(Backup(kept))
    }

    /// Puts a backup back, which may be that of another cluster: from then on this one is its double.
    ///
    /// # Errors
    /// When a part cannot be ended or started, or a file not be copied.
    pub async fn restore(&self, backup: &Backup) -> Result<()> {
        self.rest().await?;
        let own = self.folder().join("etcd");
        std::fs::remove_dir_all(&own)
            .with_context(|| format!("cannot remove {}", own.display()))?;
        copy(&backup.0, &own)?;
        self.launch().await
    }

    async fn rest(&self) -> Result<()> {
        self.parts.api_server.kill()?;
        self.parts.controller_manager.kill()?;
        self.parts.etcd.terminate(GRACE).await.map(drop)
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    for entry in
        std::fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))?
    {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), &target)
                .with_context(|| format!("cannot copy to {}", target.display()))?;
        }
    }
    Ok(())
}
