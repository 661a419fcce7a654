//! Postgres dies, and a standby that lagged is promoted.

use tidegate_protocol::{codec::Wire, pb};

use super::{Client, Cluster, OwnPostgres, ask, eventually, send, send_until_acked, text_of};

const USERS: usize = 8;

fn say(clients: &mut [Client], nths: std::ops::RangeInclusive<u64>) {
    for (n, client) in clients.iter_mut().enumerate() {
        for nth in nths.clone() {
            assert_eq!(send_until_acked(client, &format!("peer-{n}"), &format!("m{nth}")).0, nth);
        }
    }
}

#[test]
fn s8_promoted_lagging_standby_is_refilled_from_the_log() {
    let mut primary = OwnPostgres::start();
    let standby = primary.standby();
    // The server that accepts writes is used.
    let url = format!("postgres.url={}", primary.url_with(&standby));
    let cluster = Cluster::start(2, &[&url]);
    let login = |n: usize| cluster.login(n % 2, Wire::Tcp, &format!("user-{n}"));
    let mut clients: Vec<Client> = (0..USERS).map(login).collect();
    let messages = "SELECT count(*) FROM messages";
    say(&mut clients, 1..=3);
    eventually("the standby is in sync", || (standby.number(messages) == 3 * USERS as i64).then_some(()));
    standby.cut_off();
    say(&mut clients, 4..=6);
    eventually("it is archived", || (primary.number(messages) == 6 * USERS as i64).then_some(()));
    assert_eq!(standby.number(messages), 3 * USERS as i64);
    primary.crash();
    standby.promote();
    let all = |up_to: u64| (1..=up_to).map(|nth| (nth, format!("m{nth}"))).collect::<Vec<_>>();
    // Half of the conversations get no new message: their owners notice the loss by themselves.
    for (n, client) in clients.iter_mut().enumerate() {
        let up_to = if n % 2 == 0 { 7 } else { 6 };
        if n % 2 == 0 {
            assert_eq!(send_until_acked(client, &format!("peer-{n}"), "m7").0, 7);
        }
        eventually("every acked message is restored at its seq", || {
            let page = client.try_page(ask::after(&format!("d:peer-{n}:user-{n}"), 0, 1_000))?;
            let found: Vec<_> =
                page.messages.iter().map(|push| (push.seq, text_of(push).to_owned())).collect();
            assert!(all(7).starts_with(&found), "renumbered: {found:?}");
            (found == all(up_to)).then_some(())
        });
    }
    assert_eq!(standby.number(messages), 6 * USERS as i64 + USERS as i64 / 2, "no message is stored twice");
    // Retries of messages that the standby never had are still recognised.
    for (n, client) in clients.iter_mut().enumerate() {
        let again = client.send(pb::Send { attempt: 1, ..send(&format!("peer-{n}"), "m5", "m5") });
        assert_eq!((again.seq, again.duplicate), (5, true));
    }
}
