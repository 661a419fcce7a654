//! One shard on pipes with faults: reads and writes in part, interrupted calls, late and needless events.

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

use crate::{
    id, login,
    manual_shards::{ManualShards, push},
    network::Memory,
    seed::seed,
    support::{Client, ServerBody, ask},
};

const SEEDS: u64 = 20;
const PUSHES: u64 = 400;
/// Turns after the last push within which everything must have arrived.
const LAST_TURNS: usize = 2_000;

/// Member of the group, with what it has received.
struct Member {
    client: Client,
    /// First seq that is missing.
    next: u64,
    pings: usize,
    pongs: usize,
    hints: usize,
}

impl Member {
    /// Reads what has arrived; a push must follow the one before, or a hint about those in between.
    fn read(&mut self, seed: u64) {
        self.client.listen(std::time::Duration::from_millis(1));
        while let Some(frame) = self.client.inbox.pop_front() {
            match frame.body {
                Some(ServerBody::Push(push)) => {
                    assert_eq!(push.seq, self.next, "a push is missing, seed {seed}");
                    self.next += 1;
                }
                Some(ServerBody::Behind(behind)) => {
                    self.next = self.next.max(behind.max_seq + 1);
                    self.hints += 1;
                }
                Some(ServerBody::Pong(_)) => self.pongs += 1,
                other => panic!("{other:?}, seed {seed}"),
            }
        }
        assert!(self.client.ended.is_none(), "{:?}, seed {seed}", self.client.ended);
    }

    fn has_all(&self) -> bool {
        self.next == PUSHES + 1 && self.pings == self.pongs
    }
}

#[test]
fn members_get_each_push_or_a_hint_under_faults() {
    let hints: usize = (0..SEEDS).map(|nth| run(seed().wrapping_add(nth))).sum();
    assert!(hints > 0, "no member was slow enough for a hint");
}

/// Runs a group under faults; returns the number of hints.
fn run(seed: u64) -> usize {
    let mut rng = StdRng::seed_from_u64(seed);
    let output_max = rng.random_range(1..=32) * 1_024;
    let mut shards: ManualShards<Memory> = ManualShards::new(1, |context, socket| {
        socket.send_buffer_bytes = output_max;
        context.conn_settings.change(|it| it.caps.data = 32 * 1024);
    });
    let g = id("g:harbour");
    let mut members: Vec<Member> = (0..rng.random_range(3..=6))
        .map(|n| {
            let client = login(&mut shards, 0, &format!("user-{n}"), std::slice::from_ref(&g));
            Member { client, next: 1, pings: 0, pongs: 0, hints: 0 }
        })
        .collect();
    shards.transport.pipes(0).begin_faults(seed, rng.random_range(3..=20));
    shards.limit_events(rng.random_range(2..=8));
    for seq in 1..=PUSHES {
        let text = "x".repeat(rng.random_range(1..3_000));
        assert!(shards.push(0, push(&g, seq, &text)), "the shard takes its mail in each turn");
        let at = rng.random_range(0..members.len());
        members[at].client.say(ask::ping());
        members[at].pings += 1;
        shards.turn(0);
        shards.now = shards.now + std::time::Duration::from_millis(10);
        for member in &mut members {
            // A member that reads in few turns fills its pipe and its outbox.
            if rng.random_range(0..8) == 0 {
                member.read(seed);
            }
        }
    }
    shards.transport.pipes(0).end_faults();
    for _ in 0..LAST_TURNS {
        shards.turn(0);
        members.iter_mut().for_each(|member| member.read(seed));
        if members.iter().all(Member::has_all) {
            return members.iter().map(|member| member.hints).sum();
        }
    }
    let missing: Vec<(u64, usize, usize)> =
        members.iter().map(|member| (member.next, member.pings, member.pongs)).collect();
    panic!("(next, pings, pongs) after the last turn: {missing:?}, seed {seed}");
}
