//! The fence around every connection of an agent: not one byte is written when the right to lead is over.
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::{Stream, StreamExt};
use runnel_proto::tls::{Connection, Peer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

use super::Lead;
use crate::shared::Shared;

/// A connection that belongs to one right to lead and ends with it. The clock is looked at before each write, so what
/// lay in buffers while the process was paused goes nowhere.
pub struct Fenced {
    connection: Connection,
    lead: Lead,
    shared: Arc<Shared>,
}

/// The connections that were made while this process leads.
pub fn fenced(
    connections: impl Stream<Item = io::Result<Connection>> + Send,
    shared: Arc<Shared>,
) -> impl Stream<Item = io::Result<Fenced>> + Send {
    connections.filter_map(move |connection| {
        let (shared, lead) = (shared.clone(), shared.current_lead());
        async move { lead.map(|lead| connection.map(|connection| Fenced { connection, lead, shared })) }
    })
}

impl Fenced {
    fn check(&self) -> io::Result<()> {
        match self.shared.holds(&self.lead) {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::BrokenPipe, "this replica does not lead any more")),
        }
    }
}

impl Connected for Fenced {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.connection.connect_info()
    }
}

impl AsyncRead for Fenced {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_read(context, buffer)
    }
}

impl AsyncWrite for Fenced {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.connection).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.connection).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        Pin::new(&mut self.connection).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        Pin::new(&mut self.connection).poll_shutdown(context)
    }
}
