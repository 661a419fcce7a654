//! State after a power cut: everything that was synced, and any part of the rest.

use tidegate::store::{Mark, Personal};

use super::*;

/// Returns the end of the bytes that were written to the journal.
fn end_of(journal: &[u8]) -> usize {
    journal.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

impl Small {
    pub(super) async fn mark(&self, seq: u64) -> Result<(), StoreError> {
        let mark = Personal::Read(Mark { seq, messages: seq, own: 0 });
        self.store.save_marks(&[(user("bob"), direct(), mark)]).await
    }

    /// Writes marks and a user setting to the journal without a sync, then a message with one.
    async fn mark_and_say(&mut self) {
        let store = Arc::clone(&self.store);
        let mark = |seq| {
            let store = Arc::clone(&store);
            async move {
                let mark = Personal::Read(Mark { seq, messages: seq, own: 0 });
                store.save_marks(&[(user("bob"), direct(), mark)]).await.unwrap();
            }
        };
        let wish = async {
            store
                .merge_settings(&user("bob"), UserSettings { ack_tries: 2, ..UserSettings::default() })
                .await
                .unwrap();
        };
        tokio::join!(biased; mark(1), wish, mark(2), mark(3), self.say(&["m4"], 0));
    }
}

#[tokio::test]
async fn power_cut_keeps_confirmed_writes_and_the_store_opens() {
    // On a machine that freezes for a while they get a sync of their own before the message does.
    let (disk, synced) = 'tried: {
        for _ in 0..50 {
            let disk = TestDisk::new();
            let mut small = Small::start(&disk).await;
            small.say(&["m1", "m2", "m3"], 0).await;
            let synced = end_of(&fs::read(disk.journal()).unwrap());
            let before = disk.syncs.load(Ordering::SeqCst);
            small.mark_and_say().await;
            if disk.syncs.load(Ordering::SeqCst) == before + 1 {
                break 'tried (disk, synced);
            }
        }
        panic!("marks and message never shared a sync");
    };
    let mut journal = fs::read(disk.journal()).unwrap();
    let end = end_of(&journal);
    journal.truncate(end);
    // Each lost piece alone, each kept piece alone, and each end.
    let pieces: Vec<_> = (synced..end).step_by(48).map(|from| from..end.min(from + 48)).collect();
    assert!(pieces.len() >= 12, "{synced}..{end}");
    for piece in pieces {
        let only_lost = [&journal[..piece.start], &vec![0; piece.len()], &journal[piece.end..]].concat();
        let mut only_kept = [&journal[..synced], &vec![0; end - synced]].concat();
        only_kept[piece.clone()].copy_from_slice(&journal[piece.clone()]);
        for left in [&only_lost, &only_kept, &journal[..piece.start]] {
            fs::write(disk.journal(), left).unwrap();
            let small = Small::start(&disk).await;
            assert_eq!(small.seqs().await, [1, 2, 3], "{piece:?}");
        }
    }
    let mut flipped = journal.clone();
    flipped[synced - 40] ^= 0x40;
    fs::write(disk.journal(), flipped).unwrap();
    assert!(disk.refusal().contains("damaged"), "damage to synced bytes is never cut off");
    // Without a loss all of it counts.
    fs::write(disk.journal(), &journal).unwrap();
    let mut small = Small::start(&disk).await;
    assert_eq!(small.seqs().await, [1, 2, 3, 4]);
    assert_eq!(accepted(&small.say(&["m5"], 0).await), [5]);
}
