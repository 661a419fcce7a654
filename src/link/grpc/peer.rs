//! One peer: keeps a connection to it with three lanes, and comes back with growing pauses when it ends.

use std::{sync::Arc, time::Duration};

use tidegate_protocol::pb::{self, exchange_request::Step as Ask, exchange_response::Step as Say};
use tokio::{sync::mpsc, task::JoinHandle};
use tonic::{
    Streaming,
    transport::{Channel, Endpoint},
};

use super::{
    Settings,
    call_queue::Lane,
    handshake::{self, End},
    service,
};
use crate::{metrics::Metrics, routes::NodeBoot};

/// Pauses between attempts: the first, and the longest; each is cut by up to a half at random.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// How a connection that says nothing is found dead.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// HTTP/2 windows: two lanes that are not read can't use up the connection's.
pub(super) const LANE_WINDOW: u32 = 2 * 1024 * 1024;
pub(super) const CONNECTION_WINDOW: u32 = 4 * LANE_WINDOW;

/// A peer by the run that is wanted; ends with its value.
pub(super) struct Peer {
    pub(super) address: String,
    /// For answers and deliveries, which keep their order.
    pub(super) ordered: Arc<Lane>,
    /// For questions, which have none: none waits behind deliveries.
    pub(super) asked: Arc<Lane>,
    /// For what may be lost, which keeps its own order: nothing waits behind it.
    pub(super) strays: Arc<Lane>,
    task: JoinHandle<()>,
}

/// What the connection's task works with.
struct Connector {
    me: NodeBoot,
    to: NodeBoot,
    address: String,
    settings: Arc<Settings>,
    metrics: Metrics,
    /// Those of the peer, in this order: ordered, asked, strays.
    lanes: [Arc<Lane>; 3],
}

type Said = Streaming<pb::ExchangeResponse>;

/// A lane that both sides have agreed on.
type Opened = (mpsc::Sender<pb::ExchangeRequest>, Said);

impl Peer {
    /// Starts to connect.
    pub(super) fn start(
        me: NodeBoot,
        to: NodeBoot,
        address: String,
        settings: &Arc<Settings>,
        seed: u64,
        metrics: &Metrics,
    ) -> Self {
        let lane = || Arc::new(Lane::new(settings.queue_bytes, metrics.clone()));
        let lanes = [lane(), lane(), lane()];
        let [ordered, asked, strays] = lanes.clone();
        let connector = Connector {
            me,
            to,
            address: address.clone(),
            settings: Arc::clone(settings),
            metrics: metrics.clone(),
            lanes,
        };
        Self { address, ordered, asked, strays, task: tokio::spawn(connector.keep(seed)) }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.task.abort();
        let end = End::Why("the node is not among the peers any more".to_owned());
        [&self.ordered, &self.asked, &self.strays].into_iter().for_each(|lane| lane.down(&end));
    }
}

impl Connector {
    async fn keep(self, seed: u64) {
        let mut pauses = Pauses { random: seed, next: PAUSE_MIN };
        let mut told = None;
        loop {
            let end = match self.connect().await {
                Ok(opened) => {
                    (pauses.next, told) = (PAUSE_MIN, None);
                    Box::pin(self.run(opened)).await
                }
                Err(end) => end,
            };
            self.lanes.iter().for_each(|lane| lane.down(&end));
            self.metrics.link_failures.increment(1);
            let End::Why(why) = end else {
                tracing::info!(peer = %self.to.node, boot = self.to.boot, "that run of the peer is over");
                return;
            };
            // The same again and again is said once.
            if told.as_ref() != Some(&why) {
                tracing::warn!(peer = %self.to.node, address = self.address, why, "no link to a peer");
                told = Some(why);
            }
            tokio::time::sleep(pauses.draw()).await;
        }
    }

    async fn connect(&self) -> Result<[Opened; 3], End> {
        let connecting = async {
            let channel = self.endpoint()?.connect().await.map_err(|error| End::Why(causes(&error)))?;
            Ok([self.open(&channel).await?, self.open(&channel).await?, self.open(&channel).await?])
        };
        let late = |_| Err(End::Why("the peer did not complete the handshake in time".to_owned()));
        tokio::time::timeout(self.settings.handshake, connecting).await.unwrap_or_else(late)
    }

    fn endpoint(&self) -> Result<Endpoint, End> {
        let why = |error: tonic::transport::Error| End::Why(causes(&error));
        let scheme = if self.settings.tls.is_some() { "https" } else { "http" };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{}", self.address)).map_err(why)?;
        let endpoint = match &self.settings.tls {
            Some(tls) => endpoint.tls_config(tls.client()).map_err(why)?,
            None => endpoint,
        };
        Ok(endpoint
            .connect_timeout(self.settings.handshake)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(LANE_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW))
    }

    async fn open(&self, channel: &Channel) -> Result<Opened, End> {
        let (ask, asked) = mpsc::channel(1);
        let mut said = service::open(channel.clone(), asked).await?;
        handshake::greet(&self.me, &self.to, self.settings.secret.as_ref(), &ask, &mut said).await?;
        Ok((ask, said))
    }

    async fn run(&self, opened: [Opened; 3]) -> End {
        tracing::info!(peer = %self.to.node, boot = self.to.boot, address = self.address, "linked to a peer");
        let counted = Counted::one(&self.metrics);
        self.lanes.iter().for_each(|lane| lane.up());
        let [ordered, asked, strays] = &self.lanes;
        let [for_ordered, for_asked, for_strays] = opened;
        let end = tokio::select! {
            end = run_lane(ordered, for_ordered) => end,
            end = run_lane(asked, for_asked) => end,
            end = run_lane(strays, for_strays) => end,
        };
        drop(counted);
        end
    }
}

/// Sends what waits as fast as the peer takes it, and hands replies out, until the lane ends.
async fn run_lane(lane: &Lane, (ask, said): Opened) -> End {
    tokio::select! {
        end = send(lane, ask) => end,
        end = receive(lane, said) => end,
    }
}

async fn send(lane: &Lane, ask: mpsc::Sender<pb::ExchangeRequest>) -> End {
    // What waits is gathered only once it can leave: a slow peer gets fewer, larger frames.
    while let Ok(place) = ask.reserve().await {
        place.send(pb::ExchangeRequest { step: Some(Ask::Calls(lane.next_frame().await)) });
    }
    // The receiving half knows why, a moment later.
    std::future::pending().await
}

async fn receive(lane: &Lane, mut said: Said) -> End {
    loop {
        match said.message().await {
            Ok(Some(pb::ExchangeResponse { step: Some(Say::Replies(replies)) })) => {
                replies.replies.into_iter().for_each(|reply| lane.replied(reply));
            }
            // Something of a newer version, which this one has not asked for.
            Ok(Some(_)) => {}
            Ok(None) => return End::Why("the peer closed the lane".to_owned()),
            Err(status) => return status.into(),
        }
    }
}

/// An error with what caused it: the outermost alone says "transport error".
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

/// One in the number of linked peers, also when its task is aborted.
struct Counted(Metrics);

impl Counted {
    fn one(metrics: &Metrics) -> Self {
        metrics.link_peers.increment(1.0);
        Self(metrics.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.link_peers.decrement(1.0);
    }
}

/// Growing pauses with jitter, so that a node that comes back is not met by all at once.
struct Pauses {
    random: u64,
    next: Duration,
}

impl Pauses {
    fn draw(&mut self) -> Duration {
        let longest = self.next;
        self.next = (longest * 2).min(PAUSE_MAX);
        // SplitMix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        longest / 2 + (longest / 2).mul_f64(z as f64 / u64::MAX as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_differ_by_seed() {
        let draw = |random| {
            let mut pauses = Pauses { random, next: PAUSE_MIN };
            (0..10).map(|_| pauses.draw()).collect::<Vec<_>>()
        };
        let (one, other) = (draw(1), draw(2));
        assert_eq!(one, draw(1));
        assert_ne!(one, other);
        for (at, pause) in one.iter().enumerate() {
            let longest = (PAUSE_MIN * 2_u32.pow(u32::try_from(at).unwrap())).min(PAUSE_MAX);
            assert!((longest / 2..=longest).contains(pause), "{pause:?} at {at}");
        }
    }
}
