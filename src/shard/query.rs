//! Queries of clients: run beside the shard, told one part at a time, so that answers never pile up in an outbox.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tidegate_protocol::{
    Code,
    id::{ConversationId, UserId},
    machine::session::Query,
    pb::{self, server_frame::Body as Said},
};

use super::{Shard, actions::wall_ms, conn::Conn};
use crate::{
    conversation::{
        clear, hide, history, mark_read, read_position::Above, reader::Reader, recall::Judged, sync,
    },
    ingest::intake,
    inline,
    mail::{Found, Mail},
    ports::Ports,
};

/// A store that takes longer counts as away.
const DEADLINE: Duration = Duration::from_secs(5);

/// The open query of a connection; only there while one is.
pub(super) struct Asking {
    id: u64,
    /// What the client said it has, for a Sync.
    positions: Arc<sync::Positions>,
    /// A part of the answer is told; the next one follows, or the query ends, when the client has taken it.
    told: bool,
    /// The conversation behind which a Sync goes on.
    next: Option<ConversationId>,
    /// From then on nobody can say that nothing was done, until the log does.
    appends: Arc<AtomicBool>,
    /// Unread messages in the conversations that a Sync has told so far.
    unread: u64,
}

type Work = Pin<Box<dyn Future<Output = Result<Found, (Code, &'static str)>> + Send>>;

impl Shard {
    /// Asks the store; the answer comes at once or as mail.
    pub(super) fn ask(&mut self, conn: &mut Conn, id: u64, query: Query) {
        let Some(reader) = Self::reader(conn) else { return };
        let user = reader.user.clone();
        let appends = Arc::new(AtomicBool::new(matches!(query, Query::Leave(_))));
        let (positions, next) = (Arc::default(), None);
        let mut asking =
            Asking { id, positions, told: false, next, appends: Arc::clone(&appends), unread: 0 };
        let ports = Arc::clone(&self.context.ports);
        let work: Work = match query {
            Query::Pull(pull) => Box::pin(async move {
                ports.barrier_in(partition_in(&ports, &pull.conversation)).await;
                Ok(Found::Page(Box::new(history::pull(&*ports.store, &reader, &pull).await?)))
            }),
            Query::Positions(positions) => Box::pin(async move {
                ports.barrier().await;
                let positions = positions.into_iter().collect();
                Ok(Found::Positions(sync::changed(&*ports.store, &user, &positions).await?))
            }),
            Query::Read { ref conversation, .. }
            | Query::Clear { ref conversation, .. }
            | Query::Hide { ref conversation, .. } => {
                let conversation = conversation.clone();
                self.keep(conn, user, conversation, query)
            }
            Query::Recall { conversation, seq } => self.recall(user, conversation, seq, appends),
            Query::Leave(conversation) => {
                let admin = self.context.recaller.admin.clone();
                Box::pin(async move {
                    admin.leave(conversation, user, wall_ms()).await?;
                    Ok(Found::Nothing)
                })
            }
            Query::Sync(positions) => {
                asking.positions = Arc::new(positions.into_iter().collect());
                self.states(reader, &asking)
            }
        };
        conn.asking = Some(Box::new(asking));
        self.start(conn, work);
    }

    fn reader(conn: &Conn) -> Option<Reader> {
        let user = conn.who.as_ref()?.route.user.clone();
        Some(Reader { user, viewing: conn.session.viewing(), now_ms: wall_ms() })
    }

    fn states(&self, reader: Reader, asking: &Asking) -> Work {
        let ports = Arc::clone(&self.context.ports);
        let (positions, after) = (Arc::clone(&asking.positions), asking.next.clone());
        Box::pin(async move {
            ports.barrier().await;
            let found = sync::states(&*ports.store, &reader, &positions, after.as_ref()).await?;
            Ok(Found::States(found.states, found.next))
        })
    }

    fn recall(&self, user: UserId, conversation: ConversationId, seq: u64, appends: Arc<AtomicBool>) -> Work {
        let (ports, recaller) = (Arc::clone(&self.context.ports), self.context.recaller.clone());
        Box::pin(async move {
            let (store, first) = (&*ports.store, at_first(&ports));
            let mut judged = recaller.judge(store, &user, &conversation, (seq, first), wall_ms()).await;
            if first == Above::Unknown && matches!(judged, Err((Code::NotYet, _))) {
                let above = behind_the_barrier(&ports, &conversation).await;
                judged = recaller.judge(store, &user, &conversation, (seq, above), wall_ms()).await;
            }
            let ack = match judged? {
                Judged::Done(ack) => ack,
                Judged::Allowed(recall) => {
                    appends.store(true, Ordering::Relaxed);
                    recaller.take_back(recall, wall_ms()).await?
                }
            };
            Ok(Found::Accepted(Box::new(ack)))
        })
    }

    /// Changes what the user keeps of a conversation, and tells the user's other devices.
    fn keep(&self, conn: &Conn, user: UserId, conversation: ConversationId, query: Query) -> Work {
        let ports = Arc::clone(&self.context.ports);
        let devices = mark_read::Devices {
            directory: Arc::clone(&self.context.directory),
            shards: Arc::clone(&self.context.handles),
            beside: self.context.beside.clone(),
        };
        let actor = conn.key;
        Box::pin(async move {
            let first = at_first(&ports);
            let mut kept = keep(&ports, &user, &query, first).await;
            if first == Above::Unknown && matches!(kept, Err((Code::NotYet, _))) {
                let above = behind_the_barrier(&ports, &conversation).await;
                kept = keep(&ports, &user, &query, above).await;
            }
            if let Some(news) = kept? {
                devices.tell(&user, &conversation, news, actor);
            }
            Ok(Found::Nothing)
        })
    }

    fn start(&mut self, conn: &mut Conn, work: Work) {
        let (key, home) = (conn.key, self.context.own_handle());
        let appends = conn.asking.as_ref().map(|asking| Arc::clone(&asking.appends)).unwrap_or_default();
        let in_time = async move {
            let late = |_| match appends.load(Ordering::Relaxed) {
                true => Err((Code::Unknown, "")),
                false => Err((Code::StoreUnavailable, "the store did not answer in time")),
            };
            tokio::time::timeout(DEADLINE, work).await.unwrap_or_else(late)
        };
        let found = inline::run(&self.context.runtime, in_time, move |found| {
            Box::pin(async move {
                if let Some(home) = home {
                    // The shard is gone only when the node stops.
                    home.post(Mail::Found(key, found)).await.ok();
                }
            })
        });
        if let Some(found) = found {
            self.on_found(conn, found);
        }
    }

    /// Tells what the store said; the caller acts on it and flushes.
    pub(super) fn on_found(&mut self, conn: &mut Conn, found: Result<Found, (Code, &'static str)>) {
        let Some(asking) = conn.asking.as_mut().filter(|asking| !asking.told) else { return };
        let (session, out, id) = (&mut conn.session, &mut self.scratch.actions, asking.id);
        asking.told = true;
        asking.next = None;
        match found {
            Ok(Found::Page(page)) => session.query_told(id, vec![Said::Page(*page)], out),
            Ok(Found::States(states, next)) => {
                asking.unread += states.iter().map(|state| state.unread).sum::<u64>();
                let end = next.is_none().then(|| Said::SyncEnd(pb::SyncEnd { unread: asking.unread }));
                let told = states.into_iter().map(Said::ConversationState).chain(end).collect();
                session.query_told(id, told, out);
                asking.next = next;
            }
            Ok(Found::Positions(positions)) => session.query_pong(id, positions, self.now, out),
            Ok(Found::Accepted(ack)) => session.query_told(id, vec![Said::SendAck(*ack)], out),
            Ok(Found::Nothing) => session.query_done(id, out),
            Err((code, words)) => session.query_refused(id, code, words, &self.context.limits, out),
        }
    }

    /// Whether the query can go on: the client has taken what was told of the answer.
    pub(super) fn is_taken(conn: &Conn) -> bool {
        conn.is_open() && conn.outbox.is_none() && conn.asking.as_ref().is_some_and(|asking| asking.told)
    }

    /// Goes on with the answer, or ends the query.
    pub(super) fn go_on(&mut self, conn: &mut Conn) {
        if !Self::is_taken(conn) {
            return;
        }
        let Some(mut asking) = conn.asking.take() else { return };
        if let Some(reader) = Self::reader(conn).filter(|_| asking.next.is_some()) {
            asking.told = false;
            let work = self.states(reader, &asking);
            conn.asking = Some(asking);
            self.start(conn, work);
            return self.act(conn);
        }
        conn.session.query_over(&self.context.limits, self.now);
        self.resume(conn);
    }
}

fn partition_in(ports: &Ports, conversation: &ConversationId) -> u32 {
    intake::partition_of(conversation, ports.bus.partitions())
}

/// What lies above what the store has, for who has not passed the barrier: who names nothing of it need not.
fn at_first(ports: &Ports) -> Above {
    if ports.owned.ahead().is_allowed() { Above::Unknown } else { Above::Nothing }
}

/// The same for who has.
async fn behind_the_barrier(ports: &Ports, conversation: &ConversationId) -> Above {
    if ports.barrier_of(partition_in(ports, conversation)).await { Above::Nothing } else { Above::Unknown }
}

/// Changes what the user keeps of a conversation; what the user's other devices hear of it, if they do.
async fn keep(
    ports: &Ports,
    user: &UserId,
    query: &Query,
    above: Above,
) -> Result<Option<(u64, Said)>, history::Refusal> {
    let store = &*ports.store;
    Ok(match query {
        Query::Read { conversation, seq } => {
            let moved = mark_read::read(store, user, conversation, *seq, above).await?;
            moved.map(|mark| {
                ports.events.read(user, conversation, mark.seq);
                mark_read::receipt(user, conversation, mark)
            })
        }
        Query::Clear { conversation, seq } => {
            let moved = clear::clear(store, user, conversation, *seq, above).await?;
            moved.map(|mark| clear::cleared(conversation, mark))
        }
        Query::Hide { conversation, seqs } => {
            let hidden = hide::hide(store, user, conversation, seqs, above).await?;
            (!hidden.is_empty()).then(|| hide::hidden(conversation, hidden))
        }
        Query::Pull(_) | Query::Sync(_) | Query::Positions(_) | Query::Recall { .. } | Query::Leave(_) => {
            None
        }
    })
}
