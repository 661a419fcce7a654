//! Postgres dies, and a copy that lagged behind takes its place.

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
fn s8_postgres_failed_over_to_a_standby_that_lagged_is_filled_again_from_the_log_with_the_same_seqs() {
    let mut primary = OwnPostgres::start();
    let standby = primary.standby();
    // The one that takes writes is used, whichever that is.
    let url = format!("postgres.url={}", primary.url_with(&standby));
    let cluster = Cluster::start(2, &[&url]);
    let login = |n: usize| cluster.login(n % 2, Wire::Tcp, &format!("user-{n}"));
    let mut clients: Vec<Client> = (0..USERS).map(login).collect();
    let messages = "SELECT count(*) FROM messages";
    say(&mut clients, 1..=3);
    eventually("the standby has it all", || (standby.number(messages) == 3 * USERS as i64).then_some(()));
    standby.hear_no_more();
    say(&mut clients, 4..=6);
    eventually("it is archived", || (primary.number(messages) == 6 * USERS as i64).then_some(()));
    assert_eq!(standby.number(messages), 3 * USERS as i64);
    primary.crash();
    standby.promote();
    let all = |up_to: u64| (1..=up_to).map(|nth| (nth, format!("m{nth}"))).collect::<Vec<_>>();
    // Half of the conversations hear nothing new: their owners notice by themselves.
    for (n, client) in clients.iter_mut().enumerate() {
        let up_to = if n % 2 == 0 { 7 } else { 6 };
        if n % 2 == 0 {
            assert_eq!(send_until_acked(client, &format!("peer-{n}"), "m7").0, 7);
        }
        eventually("what was acked is there again, at its seq", || {
            let page = client.try_page(ask::after(&format!("d:peer-{n}:user-{n}"), 0, 1_000))?;
            let found: Vec<_> =
                page.messages.iter().map(|push| (push.seq, text_of(push).to_owned())).collect();
            assert!(all(7).starts_with(&found), "renumbered: {found:?}");
            (found == all(up_to)).then_some(())
        });
    }
    assert_eq!(standby.number(messages), 6 * USERS as i64 + USERS as i64 / 2, "nothing is there twice");
    // Retries of what the standby had never heard of are still known.
    for (n, client) in clients.iter_mut().enumerate() {
        let again = client.send(pb::Send { attempt: 1, ..send(&format!("peer-{n}"), "m5", "m5") });
        assert_eq!((again.seq, again.duplicate), (5, true));
    }
}
