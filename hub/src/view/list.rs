//! Lists as JSON, written part by part: a long list is never in the memory of the hub as a whole.
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::response::Response;
use futures::stream;
use http::{HeaderValue, header};
use jiff::Timestamp;
use runnel_api::{VIEW_GROUP, VIEW_VERSION};
use serde_json::json;

use super::changes::ViewScope;
use super::delivery::{Row, Scope};
use super::discovery::Resource;
use super::error::ViewError;
use super::request::{IncludeObject, Position, Query, token};
use super::table::{ViewObject, columns, partial, table_row};
use super::target::{Form, Target};
use super::{ViewServer, versioned};

/// The limit of deliveries in one part of a list.
const PART: usize = 500;

/// How a list is written.
#[derive(Clone, Copy)]
pub(super) struct ListFormat {
    form: Form,
    resource: &'static Resource,
    include: IncludeObject,
}

impl ListFormat {
    pub(super) fn new(form: Form, target: &Target, query: &Query) -> Self {
        Self {
            form,
            resource: target.resource,
            include: query.include_object,
        }
    }

    /// Returns the list up to its first object.
    fn begin<O: ViewObject>(self) -> Vec<u8> {
        let (head, items) = match self.form {
            Form::Table => {
                let columns = columns::<O>(self.include);
                let head = json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "columnDefinitions": columns});
                (head, "rows")
            }
            Form::Object => {
                let (kind, version) = (
                    format!("{}List", self.resource.kind),
                    format!("{VIEW_GROUP}/{VIEW_VERSION}"),
                );
                (json!({"kind": kind, "apiVersion": version}), "items")
            }
            Form::Metadata => {
                let head =
                    json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"});
                (head, "items")
            }
        };
        let mut text = head.to_string().into_bytes();
        // The closing brace follows after the objects.
        text.pop();
        text.extend_from_slice(format!(",\"{items}\":[").as_bytes());
        text
    }

    /// Adds one object.
    fn add(self, text: &mut Vec<u8>, row: &impl ViewObject, now: Timestamp) {
        let value = match self.form {
            Form::Table => table_row(row, self.include, now),
            Form::Object => row.object(),
            Form::Metadata => partial(row),
        };
        serde_json::to_writer(text, &value).expect("an object is JSON");
    }

    /// Returns the list after its last object.
    fn end(version: u64, next: Option<&Position>) -> Vec<u8> {
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if let Some(next) = next {
            metadata["continue"] = token(next, version).into();
        }
        format!("],\"metadata\":{metadata}}}").into_bytes()
    }

    /// Returns a whole list.
    pub(super) fn whole<O: ViewObject>(
        self,
        rows: Vec<O>,
        next: Option<&Position>,
        version: u64,
    ) -> Response {
        let (mut text, now) = (self.begin::<O>(), Timestamp::now());
        for (number, row) in rows.into_iter().enumerate() {
            if number > 0 {
                text.push(b',');
            }
            self.add(&mut text, &versioned(row, version), now);
        }
        text.extend(Self::end(version, next));
        response(Body::from(text))
    }
}

/// A list of deliveries, as far as it is not sent.
struct DeliveryListing {
    server: Arc<ViewServer>,
    scope: Scope,
    /// The query of the next part.
    query: Query,
    /// How many more deliveries the page may have.
    left: usize,
    format: ListFormat,
    version: u64,
    is_first: bool,
    ended: bool,
}

impl ViewServer {
    /// Lists deliveries.
    pub(super) async fn list(
        self: &Arc<Self>,
        target: &Target,
        query: &Query,
        form: Form,
    ) -> Result<Response, ViewError> {
        let mut listing = DeliveryListing {
            server: self.clone(),
            scope: target.scope(),
            left: query.limit,
            format: ListFormat::new(form, target, query),
            query: query.clone(),
            version: 0,
            is_first: true,
            ended: false,
        };
        let (first, listing) = self
            .compute(move || {
                listing.version = listing.begin()?;
                Ok::<_, ViewError>((listing.part()?, listing))
            })
            .await??;
        if listing.ended {
            return Ok(response(Body::from(first)));
        }
        let parts = stream::unfold(listing, DeliveryListing::next);
        let parts = stream::StreamExt::chain(stream::iter([Ok(first)]), parts);
        Ok(response(Body::from_stream(parts)))
    }
}

impl DeliveryListing {
    /// Returns the version of the list, from which a watch shows what changed since its first page.
    ///
    /// # Errors
    /// [`ViewError::ExpiredPage`], if that is not known any more.
    fn begin(&self) -> Result<u64, ViewError> {
        let shown = ViewScope::new(&self.scope, &self.query.selection);
        let Some(first) = self.query.first else {
            return Ok(self.server.cover(&shown));
        };
        let is_known = {
            let mut changes = self.server.changes();
            let is_known = changes.knows(first, &shown);
            if is_known {
                changes.read_by(&shown, Instant::now());
            }
            is_known
        };
        if is_known {
            return Ok(first);
        }
        // The client may go on, and has what changed before only by a new list.
        let version = self.server.cover(&shown);
        let next = self.query.after.as_ref();
        Err(ViewError::ExpiredPage(
            next.map(|next| token(next, version)).unwrap_or_default(),
        ))
    }

    /// Returns the next part; `None` after the last one. An error ends the connection, so that the
    /// client takes no part of a list for the whole.
    async fn next(mut self) -> Option<(Result<Vec<u8>, ViewError>, Self)> {
        if self.ended {
            return None;
        }
        let server = self.server.clone();
        let read = server.compute(move || (self.part(), self)).await;
        match read {
            Ok((part, mut listing)) => {
                listing.ended |= part.is_err();
                Some((part, listing))
            }
            Err(_) => None,
        }
    }

    fn part(&mut self) -> Result<Vec<u8>, ViewError> {
        self.query.limit = self.left.min(PART);
        let page = self.server.reader().page(&self.scope, &self.query)?;
        self.left -= page.rows.len();
        let (mut text, now) = (Vec::new(), Timestamp::now());
        if self.is_first {
            text = self.format.begin::<Row>();
        }
        for row in page.rows {
            if !std::mem::take(&mut self.is_first) {
                text.push(b',');
            }
            self.format
                .add(&mut text, &versioned(row, self.version), now);
        }
        self.ended = page.next.is_none() || self.left == 0;
        if self.ended {
            text.extend(ListFormat::end(self.version, page.next.as_ref()));
        }
        self.query.after = page.next;
        Ok(text)
    }
}

fn response(body: Body) -> Response {
    let mut response = Response::new(body);
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
