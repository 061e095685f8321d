//! The policy file. A mounted ConfigMap changes by a swap of symlinks, so the agent reads the file
//! periodically.
use std::path::PathBuf;
use std::time::Duration;

use anyhow::anyhow;

use runnel_agent_core::policy::{Policy, PolicyError};

/// Interval between reads of the file.
pub const POLL: Duration = Duration::from_secs(5);

/// The error of a policy file that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ReadError(String);

/// The error of a changed policy file that is not used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyFileError {
    /// The file cannot be read.
    #[error("it cannot be read ({0})")]
    Read(ReadError),
    /// The file does not contain a valid policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

/// The policy file, and the result of its last read.
pub struct PolicyFile {
    path: PathBuf,
    last: Result<String, ReadError>,
}

impl PolicyFile {
    /// Reads the initial policy. It must be valid, because no earlier policy could stay in force.
    ///
    /// # Errors
    /// One sentence with the field and a hint.
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

    /// Reads the file again. Returns `None` while it is unchanged, so that each error is returned
    /// once.
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

    /// Returns the path of the file.
    pub fn path(&self) -> &std::path::Path {
        &self.path
    }
}

async fn read(path: &std::path::Path) -> Result<String, ReadError> {
    tokio::fs::read_to_string(path)
        .await
        .map_err(|error| ReadError(error.to_string()))
}
