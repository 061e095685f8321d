//! Reads lists in pages that are bounded in bytes, not in objects: any author of an object decides
//! its size.
use std::fmt;
use std::io;
use std::marker::PhantomData;

use futures::io::{AsyncRead, AsyncReadExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

/// Size above which a page is requested again with fewer objects.
pub const PAGE_BYTES: usize = 8 * 1024 * 1024;
/// The maximum size of an answer with one object. The API server accepts about 1.5 MiB, which JSON
/// may encode in six times as many bytes, and `managedFields` repeats the field names.
const OBJECT_BYTES: usize = 32 * 1024 * 1024;
/// Size of the read buffer.
const BUFFER_BYTES: usize = 64 * 1024;
/// Number of objects of the first page of a list, and the maximum.
const FIRST_PAGE: u32 = 100;
const MAX_PAGE: u32 = 250;
/// The smallest page, which arrives in time on any link.
const MIN_PAGE: u32 = 4;

/// The number of objects of the next page.
#[derive(Clone, Copy, Debug)]
pub struct PageSize {
    limit: u32,
    most: u32,
}

impl Default for PageSize {
    fn default() -> Self {
        Self {
            limit: FIRST_PAGE,
            most: MAX_PAGE,
        }
    }
}

impl PageSize {
    /// The limit of the next page.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// The most bytes that the answer may have.
    pub fn bytes(&self) -> usize {
        if self.limit == 1 {
            OBJECT_BYTES
        } else {
            PAGE_BYTES
        }
    }

    /// Reduces the page size after an oversized page. Returns whether a retry is possible.
    pub fn shrink(&mut self) -> bool {
        let before = self.limit;
        self.limit = (before / 4).max(1);
        before > 1
    }

    /// A page took longer than it may: until a list is complete, pages are smaller.
    pub fn record_timeout(&mut self) {
        self.most = (self.limit / 4).max(MIN_PAGE);
        self.limit = self.limit.min(self.most);
    }

    /// A page had this many bytes.
    pub fn record_page_size(&mut self, bytes: usize) {
        if bytes < PAGE_BYTES / 8 {
            self.limit = self.limit.saturating_mul(2).min(self.most);
        }
    }

    /// A list is complete.
    pub fn complete(&mut self) {
        self.most = MAX_PAGE;
    }
}

/// Returns the body of an answer; `None` if it has more than `limit` bytes, whose rest is not read.
///
/// # Errors
/// The error of the connection.
pub async fn read_page(body: impl AsyncRead, limit: usize) -> io::Result<Option<Vec<u8>>> {
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; BUFFER_BYTES]);
    let mut body = std::pin::pin!(body);
    // Not `read_to_end`: it clears all of the room that the vector has whenever more arrives.
    loop {
        let count = body.read(&mut buffer).await?;
        if count == 0 {
            return Ok(Some(bytes));
        }
        bytes.extend_from_slice(buffer.get(..count).unwrap_or_default());
        if bytes.len() > limit {
            return Ok(None);
        }
    }
}

/// Parses a list and yields its objects one by one, with at most one of them in memory.
///
/// # Errors
/// If it is not a list of such objects. The text may quote an object.
pub fn parse_page<T: DeserializeOwned>(
    bytes: &[u8],
    each: impl FnMut(T),
) -> Result<ListMeta, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    List {
        each,
        object: PhantomData,
    }
    .deserialize(&mut reader)
}

struct List<T, F> {
    each: F,
    object: PhantomData<T>,
}

impl<'de, T: DeserializeOwned, F: FnMut(T)> DeserializeSeed<'de> for List<T, F> {
    type Value = ListMeta;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<ListMeta, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, T: DeserializeOwned, F: FnMut(T)> Visitor<'de> for List<T, F> {
    type Value = ListMeta;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<ListMeta, A::Error> {
        let mut metadata = ListMeta::default();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "metadata" => metadata = map.next_value()?,
                "items" => map.next_value_seed(Items {
                    each: &mut self.each,
                    object: PhantomData,
                })?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(metadata)
    }
}

struct Items<'a, T, F> {
    each: &'a mut F,
    object: PhantomData<T>,
}

impl<'de, T: DeserializeOwned, F: FnMut(T)> DeserializeSeed<'de> for Items<'_, T, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: DeserializeOwned, F: FnMut(T)> Visitor<'de> for Items<'_, T, F> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while let Some(object) = items.next_element()? {
            (self.each)(object);
        }
        Ok(())
    }

    /// An API server writes an empty list of metadata as `null`.
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn page_size_follows_the_bytes() {
        let mut size = PageSize::default();
        assert_eq!((size.limit(), size.bytes()), (FIRST_PAGE, PAGE_BYTES));
        for _ in 0..3 {
            size.record_page_size(1_000);
        }
        assert_eq!(size.limit(), MAX_PAGE);
        size.record_page_size(PAGE_BYTES);
        assert_eq!(size.limit(), MAX_PAGE, "a full page does not grow");
        let mut steps = 0;
        while size.shrink() {
            steps += 1;
        }
        assert_eq!((size.limit(), size.bytes(), steps), (1, OBJECT_BYTES, 4));
        size.record_page_size(1_000);
        assert_eq!(size.limit(), 2);
    }

    #[test]
    fn pages_stay_small_until_a_list_is_complete() {
        let mut size = PageSize::default();
        for expected in [25, 6, 4, 4] {
            size.record_timeout();
            size.record_page_size(1_000);
            assert_eq!(size.limit(), expected);
        }
        size.complete();
        size.record_page_size(1_000);
        assert_eq!(size.limit(), 8);
    }

    /// A body that arrives in small pieces, each after a pause.
    struct Trickle {
        pieces: usize,
        is_due: bool,
        most_room: usize,
    }

    impl AsyncRead for Trickle {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            room: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            self.most_room = self.most_room.max(room.len());
            self.is_due = !self.is_due;
            if !self.is_due {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let count = room.len().min(1_000).min(self.pieces * 1_000);
            self.pieces = self.pieces.saturating_sub(1);
            Poll::Ready(Ok(count))
        }
    }

    #[tokio::test]
    async fn page_is_read_piece_by_piece_up_to_its_limit() {
        for (limit, whole) in [(5_000_000, true), (4_999_999, false)] {
            let mut body = Trickle {
                pieces: 5_000,
                is_due: false,
                most_room: 0,
            };
            let page = read_page(&mut body, limit).await.unwrap();
            assert_eq!(page.map(|bytes| bytes.len()), whole.then_some(5_000_000));
            assert!(
                body.most_room <= BUFFER_BYTES,
                "what is cleared before a read must not grow with what was read"
            );
        }
    }

    #[test]
    fn list_returns_objects_and_continue_token() {
        let list = json!({"kind": "SecretList", "items": [{"a": 1}, {"b": 2}],
            "metadata": {"resourceVersion": "7", "continue": "next"}, "apiVersion": "v1"});
        let mut seen = vec![];
        let metadata = parse_page(list.to_string().as_bytes(), |object: Value| {
            seen.push(object)
        })
        .ok()
        .unwrap();
        assert_eq!(seen, [json!({"a": 1}), json!({"b": 2})]);
        assert_eq!(
            (
                metadata.resource_version.as_deref(),
                metadata.continue_.as_deref()
            ),
            (Some("7"), Some("next"))
        );
        assert!(parse_page(b"404 page not found", |_: Value| {}).is_err());
        assert!(parse_page(br#"{"items": 7}"#, |_: Value| {}).is_err());
        let empty = parse_page(
            br#"{"metadata": {"resourceVersion": "7"}, "items": null}"#,
            |_: Value| panic!("nothing"),
        );
        assert_eq!(empty.ok().unwrap().resource_version.as_deref(), Some("7"));
    }
}
