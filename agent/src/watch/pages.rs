//! Calls that list, and why they fail.
use std::future::Future;
use std::time::Duration;

use kube::Client;
use kube::core::{ListMeta, Status};
pub(super) use runnel_transport::pages::PageSize;
use runnel_transport::pages::{parse_page, read_page};
use serde::de::DeserializeOwned;

/// How long an answer may take, and each page.
const ANSWER: Duration = Duration::from_secs(30);

/// Why a list or a watch failed.
pub(super) enum WatchError {
    /// The API server refused.
    Refused(Box<Status>),
    /// No usable answer.
    Unanswered,
    /// No answer in time.
    Late,
}

impl WatchError {
    /// The HTTP status, 0 for none.
    pub(super) fn code(&self) -> u16 {
        match self {
            Self::Refused(status) => status.code,
            Self::Unanswered | Self::Late => 0,
        }
    }
}

/// The error's text is not used: it may quote an object.
impl From<kube::Error> for WatchError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Refused(status),
            _ => Self::Unanswered,
        }
    }
}

/// What came of a call that may take no longer than [`ANSWER`].
pub(super) async fn in_time<T, E: Into<WatchError>>(
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, WatchError> {
    match tokio::time::timeout(ANSWER, call).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_) => Err(WatchError::Late),
    }
}

/// The answer to a request, unless it has more than `limit` bytes: then the rest is not read.
pub(super) async fn read(
    client: &Client,
    request: http::Request<Vec<u8>>,
    limit: usize,
) -> Result<Option<Vec<u8>>, WatchError> {
    in_time(async {
        let body = client.request_stream(request).await?;
        read_page(body, limit)
            .await
            .map_err(|_| WatchError::Unanswered)
    })
    .await
}

/// Reads a list and gives its objects out one by one: only one of them is there as a whole at any time.
pub(super) fn parse<T: DeserializeOwned>(
    bytes: &[u8],
    each: impl FnMut(T),
) -> Result<ListMeta, WatchError> {
    parse_page(bytes, each).map_err(|_| WatchError::Unanswered)
}
