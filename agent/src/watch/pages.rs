//! Calls for lists, and their errors.
use std::future::Future;
use std::time::Duration;

use kube::Client;
use kube::core::{ListMeta, Status};
pub(super) use runnel_transport::pages::PageSize;
use runnel_transport::pages::{parse_page, read_page};
use serde::de::DeserializeOwned;

/// Timeout of an answer, and of each page.
const ANSWER: Duration = Duration::from_secs(30);

/// The error of a list or a watch.
pub(super) enum WatchError {
    /// The API server refused the request.
    Refused(Box<Status>),
    /// There was no usable answer.
    Unanswered,
    /// There was no answer in time.
    Timeout,
}

impl WatchError {
    /// Returns the HTTP status, 0 for none.
    pub(super) fn code(&self) -> u16 {
        match self {
            Self::Refused(status) => status.code,
            Self::Unanswered | Self::Timeout => 0,
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

/// Returns the result of a call, with a timeout of [`ANSWER`].
pub(super) async fn in_time<T, E: Into<WatchError>>(
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, WatchError> {
    match tokio::time::timeout(ANSWER, call).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_) => Err(WatchError::Timeout),
    }
}

/// Returns the answer to a request; `None` if it has more than `limit` bytes, whose rest is not
/// read.
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

/// Parses a list and passes its objects to `each` one by one. Only one parsed object is in memory
/// at any time.
pub(super) fn parse<T: DeserializeOwned>(
    bytes: &[u8],
    each: impl FnMut(T),
) -> Result<ListMeta, WatchError> {
    parse_page(bytes, each).map_err(|_| WatchError::Unanswered)
}
