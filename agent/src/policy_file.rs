//! The policy's file. A mounted ConfigMap changes by a swap of symlinks, so its content is read again and again.
use std::path::PathBuf;
use std::time::Duration;

use anyhow::anyhow;

use runnel_agent_core::policy::Policy;

/// How often the file is read.
pub const POLL: Duration = Duration::from_secs(5);

/// The file, and what was last read of it.
pub struct PolicyFile {
    path: PathBuf,
    last: Result<String, String>,
}

impl PolicyFile {
    /// Reads the policy to begin with. There is no older one that could stay in force, so it must be right.
    ///
    /// # Errors
    /// One sentence with the field and the cure.
    pub async fn open(path: PathBuf) -> anyhow::Result<(Self, Policy)> {
        let last = read(&path).await;
        let text = last.as_ref().map_err(|cause| {
            anyhow!("the policy file {} cannot be read ({cause}): check --policy-file", path.display())
        })?;
        let policy = Policy::parse(text)
            .map_err(|error| anyhow!("the policy file {} cannot be used: {error}", path.display()))?;
        Ok((Self { path, last }, policy))
    }

    /// Reads the file again. `None` while nothing changed; what cannot be used is said once.
    pub async fn poll(&mut self) -> Option<Result<Policy, String>> {
        let now = read(&self.path).await;
        if now == self.last {
            return None;
        }
        self.last = now;
        let text = match &self.last {
            Ok(text) => text,
            Err(cause) => return Some(Err(format!("it cannot be read ({cause})"))),
        };
        Some(Policy::parse(text).map_err(|error| error.to_string()))
    }

    /// Where the file is.
    pub fn path(&self) -> &std::path::Path {
        &self.path
    }
}

async fn read(path: &std::path::Path) -> Result<String, String> {
    tokio::fs::read_to_string(path).await.map_err(|error| error.to_string())
}
