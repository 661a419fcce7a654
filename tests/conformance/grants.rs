//! The suite of permits, a part of `Scratch`, and the script of Redis against the cases of the model.

use std::time::Duration;

use serde::Deserialize;
use tidegate::scratch::{PermitCall, RedisScratch, Scratch as _};
use tidegate_protocol::machine::permit::{Grant, PermitAsk, PermitRule};

use super::{
    redis::{Server, Version},
    scratch::{World, faultless, memory, on_a_cluster, on_redis},
    time::{WAIT_MAX, eventually_async},
};

suite! {
    {
        memory => super::memory();
        faultless => super::faultless();
        redis_7 => super::on_redis(super::Version::V7);
        redis_62 => super::on_redis(super::Version::V62);
    }
    {
        limit_is_granted_once_in_a_window
        charges_count_whatever_the_limit
        keys_of_many_slots_are_answered_in_order
    }
}

fn call(rule: &str, subject: u128, limit: u32, want: u32, charge: u32) -> PermitCall {
    let limit = PermitRule::new(limit, Duration::from_secs(1));
    PermitCall { rule: rule.into(), subject, limit, ask: PermitAsk { id: 1, want, charge } }
}

impl World {
    async fn ask(&self, call: PermitCall) -> Grant {
        let answers = self.scratch.grant_permits(&[call]).await.unwrap();
        assert_eq!(answers.grants.len(), 1);
        answers.grants[0]
    }
}

async fn limit_is_granted_once_in_a_window(world: &World) {
    let began = std::time::Instant::now();
    assert_eq!(world.ask(call("r", 7, 10, 6, 0)).await.granted, 6);
    let short = world.ask(call("r", 7, 10, 6, 0)).await;
    assert_eq!((short.granted, short.used), (4, 10));
    assert!(short.wait_us <= 1_050_001 && short.wait_us > 0, "{short:?}");
    let full = world.ask(call("r", 7, 10, 1, 0)).await;
    assert_eq!(full.granted, 0);
    assert_eq!(world.ask(call("other", 7, 10, 9, 0)).await.granted, 9, "another rule");
    assert_eq!(world.ask(call("r", 8, 10, 9, 0)).await.granted, 9, "another subject");
    eventually_async(WAIT_MAX, "permits are granted again", async || {
        (world.ask(call("r", 7, 10, 1, 0)).await.granted == 1).then_some(())
    })
    .await;
    assert!(began.elapsed() >= Duration::from_millis(1_000), "after the window");
}

async fn charges_count_whatever_the_limit(world: &World) {
    let charged = world.ask(call("r", 7, 10, 3, 12)).await;
    assert_eq!((charged.granted, charged.used), (0, 12));
    assert_eq!(world.ask(call("r", 7, 20, 9, 0)).await.granted, 8, "with a larger limit");
}

async fn keys_of_many_slots_are_answered_in_order(world: &World) {
    let calls: Vec<PermitCall> = (0..200).map(|n| call("r", n * 0x1_0001, 1_000, 1 + n as u32, 0)).collect();
    for round in 1..=2 {
        let answers = world.scratch.grant_permits(&calls).await.unwrap();
        for (n, grant) in (1..).zip(&answers.grants) {
            assert_eq!((grant.granted, grant.used), (n, u64::from(n) * round));
        }
    }
    assert!(world.scratch.grant_permits(&[]).await.unwrap().grants.is_empty());
}

#[tokio::test]
async fn permits_of_many_slots_on_a_redis_cluster() {
    let world = on_a_cluster(Version::V7);
    keys_of_many_slots_are_answered_in_order(&world).await;
    limit_is_granted_once_in_a_window(&world).await;
}

/// Case of the model, as `protocol/tests/data/grants.json` has it.
#[derive(Deserialize)]
struct Case {
    name: String,
    value: String,
    now: u64,
    want: u64,
    charge: u64,
    limit: u64,
    window: u64,
    life: u64,
    granted: u64,
    wait: u64,
    used: u64,
    after: String,
}

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
    (0..hex.len() / 2).map(digit).collect()
}

/// The script with the clock of a case, since that of the server can't be set.
#[test]
fn s32_s34_script_agrees_with_the_model() {
    const SCRIPT: &str = include_str!("../../src/redis/grant.lua");
    const CLOCK: &str = "redis.call('TIME')";
    const KEY: &str = "tg:limit:{l01}:rule:subject";
    let cases: Vec<Case> =
        serde_json::from_str(include_str!("../../protocol/tests/data/grants.json")).unwrap();
    assert!(cases.len() > 200 && SCRIPT.contains(CLOCK));
    for version in [Version::V7, Version::V62] {
        let server = Server::start(version);
        let mut conn = server.connection().unwrap();
        for case in &cases {
            let clock = format!("{{'{}', '{}'}}", case.now / 1_000_000, case.now % 1_000_000);
            let mut set = redis::cmd(if case.value.is_empty() { "DEL" } else { "SET" });
            set.arg(KEY);
            if !case.value.is_empty() {
                set.arg(bytes(&case.value));
            }
            set.exec(&mut conn).unwrap();
            let mut eval = redis::cmd("EVAL");
            eval.arg(SCRIPT.replace(CLOCK, &clock)).arg(1).arg(KEY);
            eval.arg(&[case.want, case.charge, case.limit, case.window, case.life]);
            let answer: [u64; 3] = eval.query(&mut conn).unwrap();
            assert_eq!(answer, [case.granted, case.wait, case.used], "{}", case.name);
            let after: Vec<u8> =
                redis::cmd("GET").arg(KEY).query::<Option<_>>(&mut conn).unwrap().unwrap_or_default();
            assert!(after == bytes(&case.after), "{}", case.name);
            let left: i64 = redis::cmd("PTTL").arg(KEY).query(&mut conn).unwrap();
            let life = i64::try_from((case.window + case.life) / 1_000).unwrap();
            assert!(left <= life + 2, "{}: {left} ms", case.name);
        }
    }
}

#[tokio::test]
async fn s33_permits_continue_after_a_flush_of_scripts() {
    let server = Server::start(Version::V7);
    let scratch = RedisScratch::connect(&server.patient()).unwrap();
    let ask = async || scratch.grant_permits(&[call("r", 7, 10, 6, 0)]).await.unwrap().grants[0];
    assert_eq!(ask().await.granted, 6);
    let _: String = server.ask(&["SCRIPT", "FLUSH"]);
    assert_eq!(ask().await.granted, 4);
    let left: u64 = server.ask(&["PTTL", "tg:limit:{l07}:r:00000000000000000000000000000007"]);
    assert!((1..=1_052).contains(&left), "S35: it expires in {left} ms");
}
