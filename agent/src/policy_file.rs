//! The policy's file. A mounted ConfigMap changes by a swap of symlinks, so its content is read again and again.
use std::path::PathBuf;
use std::time::Duration;

use anyhow::anyhow;

use runnel_agent_core::policy::{Policy, PolicyError};

/// How often the file is read.
pub const POLL: Duration = Duration::from_secs(5);

/// Why a policy file cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ReadError(String);

/// Why a changed policy file is not used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyFileError {
    /// It cannot be read.
    #[error("it cannot be read ({0})")]
    Read(ReadError),
    /// It does not hold a policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

/// The file, and what was last read of it.
pub struct PolicyFile {
    path: PathBuf,
    last: Result<String, ReadError>,
}

impl PolicyFile {
    /// Reads the policy to begin with. There is no older one that could stay in force, so it must be right.
    ///
    /// # Errors
    /// One sentence with the field and the cure.
    pub async fn open(path: PathBuf) -> anyhow::Result<(Self, Policy)> {
        let last = read(&path).await;
        let text = last.as_ref().map_err(|cause| {
            anyhow!(
                "the policy file {} cannot be read ({cause}): check --policy-file",
                path.display()
            )
        })?;
        let policy = Policy::parse(text).map_err(|error| {
            anyhow!("the policy file {} cannot be used: {error}", path.display())
        })?;
        Ok((Self { path, last }, policy))
    }

    /// Reads the file again. `None` while nothing changed; what cannot be used is said once.
    pub async fn poll(&mut self) -> Option<Result<Policy, PolicyFileError>> {
        let now = read(&self.path).await;
        if now == self.last {
            return None;
        }
        self.last = now;
        let text = match &self.last {
            Ok(text) => text,
            Err(cause) => return Some(Err(PolicyFileError::Read(cause.clone()))),
        };
        Some(Policy::parse(text).map_err(PolicyFileError::from))
    }

    /// Where the file is.
    pub fn path(&self) -> &std::path::Path {
        &self.path
    }
}

async fn read(path: &std::path::Path) -> Result<String, ReadError> {
    tokio::fs::read_to_string(path)
        .await
        .map_err(|error| ReadError(error.to_string()))
}
