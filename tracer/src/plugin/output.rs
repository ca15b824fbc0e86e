//! The standard output of a command in a container.
//!
//! Owns its end: that of the command, or that of a connection that was cut. Kube's pipe has no end then, and a reader would
//! wait for ever.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::AttachedProcess;
use tokio::{
    io::{AsyncRead, ReadBuf, ReadHalf, SimplexStream},
    time::{Sleep, sleep, timeout},
};

/// How long after the end of the connection the pipe may still be filled, and after that of the output the status may come.
const DRAIN: Duration = Duration::from_secs(1);

/// How the connection ended.
enum End {
    NotYet,
    /// Without a status of the command.
    Cut,
    Status(Box<Status>),
}

impl End {
    fn of(status: Option<Status>) -> Self {
        status.map_or(Self::Cut, |status| Self::Status(Box::new(status)))
    }
}

/// What a command writes. It ends with the command, and soon after the connection.
pub(super) struct Output {
    pipe: ReadHalf<SimplexStream>,
    /// The status of the command; `None` if the connection ended without one.
    status: BoxFuture<'static, Option<Status>>,
    end: End,
    drain: Option<Pin<Box<Sleep>>>,
}

impl Output {
    /// `None` if the output was not asked for, or is taken.
    pub(super) fn take(process: &mut AttachedProcess) -> Option<Self> {
        let (pipe, status) = (process.stdout()?, process.take_status()?);
        Some(Self { pipe, status: status.boxed(), end: End::NotYet, drain: None })
    }

    /// After the last byte: whether the command ended with exit status 0; `None` if the connection was cut before.
    pub(super) async fn is_success(&mut self) -> Option<bool> {
        if matches!(self.end, End::NotYet) {
            self.end = End::of(timeout(DRAIN, &mut self.status).await.ok().flatten());
        }
        match &self.end {
            End::Status(status) => Some(status.status.as_deref() == Some("Success")),
            End::NotYet | End::Cut => None,
        }
    }
}

impl AsyncRead for Output {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { pipe, status, end, drain } = self.get_mut();
        if let Poll::Ready(read) = Pin::new(pipe).poll_read(context, into) {
            *drain = None;
            return Poll::Ready(read);
        }
        if matches!(end, End::NotYet) {
            let Poll::Ready(status) = status.poll_unpin(context) else { return Poll::Pending };
            *end = End::of(status);
        }
        drain.get_or_insert_with(|| Box::pin(sleep(DRAIN))).poll_unpin(context).map(Ok)
    }
}
