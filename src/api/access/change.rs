//! Changes: each has a place among those of its kind, and is recorded whatever becomes of its caller.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::Request,
    http::StatusCode,
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use tidegate_protocol::{Code, id::MsgId};
use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    time::timeout,
};

use super::{
    AdminGate, Draft,
    message_places::{self, MessagePlace},
    route::{AdminRoute, Effect},
};
use crate::{
    api::{Problem, ProblemDetails, http_server::LargeBodyPlace},
    audit::Actor,
    ingest::admin::Admin,
    supervised,
};

/// Path of requests for one message, with which those for many begin.
const MESSAGE_PATH: &str = "/v1/messages";

/// Id for the message of a request that names none. The gate makes it, so that it is known whatever becomes of the request.
#[derive(Clone)]
pub(in crate::api) struct MessageIdForNow(pub(in crate::api) MsgId);

/// Presence of the caller of a change. The change goes on without it, except for work that must not undo what the caller does
/// next.
#[derive(Clone)]
pub(in crate::api) struct CallerPresence(watch::Receiver<()>);

impl CallerPresence {
    /// Does work until it has taken `max`, or the caller has left; `None` if it is ended early. It is dropped then, before an
    /// answer.
    pub(in crate::api) async fn during<T>(
        mut self,
        max: Duration,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let left = async { while self.0.changed().await.is_ok() {} };
        let awaited = async {
            tokio::select! {
                biased;
                () = left => None,
                done = work => Some(done),
            }
        };
        timeout(max, awaited).await.unwrap_or(None)
    }
}

/// Place of a change among those of its kind.
enum ChangePlace {
    Change(#[expect(dead_code, reason = "held")] OwnedSemaphorePermit),
    Message(#[expect(dead_code, reason = "held")] MessagePlace),
}

impl AdminGate {
    /// Takes a place for a change; `None` if there is none.
    fn place(&self, route: &AdminRoute, actor: &Actor) -> Option<ChangePlace> {
        if !message_places::has_place(route.path) {
            return Arc::clone(&self.changes).try_acquire_owned().ok().map(ChangePlace::Change);
        }
        let key = match actor {
            Actor::Key { id, .. } => Some(id.as_str()),
            _ => None,
        };
        self.message_places.take(route.path, key).map(ChangePlace::Message)
    }
}

/// Makes a change, which is recorded before it is answered.
pub(super) async fn change(mut draft: Draft, actor: Actor, mut request: Request, next: Next) -> Response {
    let gate = Arc::clone(&draft.gate);
    let Some(place) = gate.place(draft.route, &actor) else {
        return Problem(Code::Overloaded, "too many requests of this kind at a time; repeat it".into())
            .into_response();
    };
    if !gate.can_record().await {
        gate.metrics.audit_refusals.increment(1);
        return Problem(Code::AuditUnavailable, String::new()).into_response();
    }
    let message_id = (draft.route.path == MESSAGE_PATH).then(|| {
        let given = draft.targets.request_id.as_deref().and_then(|id| MsgId::new(id).ok());
        given.unwrap_or_else(Admin::fresh_request_id)
    });
    if let Some(id) = &message_id {
        draft.targets.request_id.get_or_insert_with(|| id.as_str().to_owned());
        request.extensions_mut().insert(MessageIdForNow(id.clone()));
    }
    let failed = |code, why: &str| {
        let refusal = ProblemDetails::from(Problem(code, why.to_owned()));
        match &message_id {
            Some(id) => refusal.with("msgId", id.as_str()),
            None => refusal,
        }
    };
    let body_place = request.extensions().get::<LargeBodyPlace>().cloned();
    let (_stays, presence) = watch::channel(());
    request.extensions_mut().insert(CallerPresence(presence));
    // A task of its own: the change and its record outlive a caller that leaves, and so do the places that it takes.
    let changed = supervised::spawn("a change by the admin API", async move {
        let _places = (place, body_place);
        if draft.route.effect == Effect::Crash {
            gate.record(draft.entry(actor.clone(), None, None), true).await;
        }
        let outcome = supervised::contained(next.run(request)).await;
        let (status, code) = match &outcome {
            Ok(response) => (response.status(), response.extensions().get().copied()),
            Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, Some(Code::Internal)),
        };
        gate.record(draft.entry(actor, Some(status), code), true).await;
        outcome
    });
    match changed.await {
        Ok(Ok(response)) => response,
        Ok(Err(_panicked)) if message_id.is_some() => {
            let why = "the request failed by an error of the broker; repeat it with this msgId as requestId";
            failed(Code::Internal, why).with_status(StatusCode::INTERNAL_SERVER_ERROR).into_response()
        }
        Ok(Err(panicked)) => panicked.resume(),
        Err(_stopping) => failed(Code::Unknown, "the node stops").into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn work_ends_with_its_time_or_its_caller() {
        const MAX: Duration = Duration::from_secs(8);
        let (stays, presence) = watch::channel(());
        let presence = CallerPresence(presence);
        let (held, work) = (Arc::new(()), |held: Arc<()>| async move {
            let _held = held;
            pending::<()>().await;
        });
        assert_eq!(presence.clone().during(MAX, async { 7 }).await, Some(7));
        assert_eq!(presence.clone().during(MAX, work(Arc::clone(&held))).await, None, "late");
        assert_eq!(Arc::strong_count(&held), 1, "it is over at the answer");
        let mut waiting = Box::pin(presence.clone().during(MAX, work(Arc::clone(&held))));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(stays);
        assert_eq!(waiting.as_mut().now_or_never(), Some(None), "its caller has left");
        drop(waiting);
        assert_eq!(presence.during(MAX, async { 7 }).await, None, "not begun");
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
