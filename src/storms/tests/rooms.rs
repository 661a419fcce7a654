//! Storms of rooms: what this node counts by itself, and what the shared window says.

use std::{num::NonZeroU64, ops::RangeInclusive};

use async_trait::async_trait;

use super::*;
use crate::scratch::{Numbers, ScratchError, SharedStorm, SharedWindow, WindowChange};

/// Numbers whose window is set.
#[derive(Default)]
struct SetWindow(Mutex<Option<SharedWindow>>);

#[async_trait]
impl Numbers for SetWindow {
    async fn take(&self, _: &str, _: NonZeroU64) -> Result<RangeInclusive<u64>, ScratchError> {
        Ok(1..=1)
    }

    async fn window(&self, _: &str, _: StormRule, _: u64) -> Result<Option<SharedWindow>, ScratchError> {
        Ok(self.0.lock().clone())
    }

    async fn changed(&self) -> Result<(), ScratchError> {
        Ok(())
    }
}

fn hall() -> ConversationId {
    ConversationId::parse("r:hall").unwrap()
}

/// Opens rooms with this threshold.
fn rooms(world: &World, threshold: u32) -> Arc<RoomStorms> {
    world.board.set_room_threshold(threshold);
    world.board.open_rooms(&world.events, &metrics::install().0, || 1_000_000)
}

fn window(count: u32, change: Option<WindowChange>) -> SharedWindow {
    let storm = SharedStorm { seq: 7, since_ms: 5, peak: 101, is_cooling: false };
    SharedWindow { count, storm: Some(storm), change }
}

#[tokio::test(start_paused = true)]
async fn room_that_one_node_numbers_storms_with_the_101st_message() {
    let world = World::start(1);
    let rooms = rooms(&world, 100);
    rooms.note(&hall(), &(1..=100), None);
    assert_eq!((world.view(&hall()).unwrap().count, world.reported()), (100, vec![]));
    rooms.note(&hall(), &(101..=101), None);
    assert_eq!(world.reported(), [("r:hall/101".to_owned(), false)]);
    assert_eq!(world.board.page(&StormsQuery::default()).total, 1);
}

#[tokio::test(start_paused = true)]
async fn storm_of_a_room_is_over_one_window_after_it_cooled() {
    let world = World::start(1);
    let rooms = rooms(&world, 10);
    rooms.note(&hall(), &(1..=11), None);
    time::advance(WINDOW).await;
    rooms.tick_own(1);
    time::advance(WINDOW - Duration::from_millis(1)).await;
    rooms.tick_own(1);
    assert_eq!(world.reported().len(), 1, "it cools for a window");
    time::advance(Duration::from_millis(1)).await;
    rooms.tick_own(1);
    assert_eq!(world.reported()[1], ("r:hall/11".to_owned(), true));
}

#[tokio::test(start_paused = true)]
async fn share_of_the_threshold_is_a_storm_of_what_a_node_counts_by_itself() {
    let world = World::start(1);
    let rooms = rooms(&world, 100);
    rooms.tick_own(4);
    rooms.note(&hall(), &(1..=25), None);
    assert_eq!(world.reported(), []);
    rooms.note(&hall(), &(26..=26), None);
    assert_eq!(world.reported().len(), 1);
    assert_eq!(rooms.rule().unwrap().threshold(), 100, "the shared window has the whole of it");
}

#[tokio::test(start_paused = true)]
async fn shared_storm_is_listed_by_all_and_reported_by_the_node_that_sees_its_start() {
    let (one, two) = (World::start(1), World::start(1));
    let (rooms, others) = (rooms(&one, 100), rooms(&two, 100));
    rooms.note(&hall(), &(1..=1), Some(&window(101, Some(WindowChange::Started))));
    others.note(&hall(), &(2..=2), Some(&window(102, None)));
    assert_eq!((one.reported().len(), two.reported().len()), (1, 0));
    assert_eq!((rooms.known(&hall()), others.known(&hall())), (7, 0), "the first one acknowledges it");
    assert_eq!(two.view(&hall()).unwrap().count, 102);
    // The other node looks first after the window is over.
    let numbers = SetWindow(Mutex::new(Some(window(0, Some(WindowChange::Ended)))));
    others.tick_shared(&numbers).await;
    assert_eq!(two.reported(), [("r:hall/7".to_owned(), true)]);
    *numbers.0.lock() = Some(SharedWindow { storm: None, ..window(0, None) });
    rooms.tick_shared(&numbers).await;
    assert_eq!((one.reported().len(), one.board.page(&StormsQuery::default()).total), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn storm_whose_window_is_gone_is_forgotten() {
    let world = World::start(1);
    let rooms = rooms(&world, 100);
    rooms.note(&hall(), &(1..=1), Some(&window(101, Some(WindowChange::Started))));
    rooms.tick_shared(&SetWindow::default()).await;
    assert_eq!(world.board.page(&StormsQuery::default()).total, 0);
}

#[tokio::test(start_paused = true)]
async fn lost_reply_of_a_shared_window_is_not_counted_here_and_an_outage_is() {
    let world = World::start(1);
    let rooms = rooms(&world, 10);
    rooms.note(&hall(), &(1..=1), Some(&SharedWindow { count: 1, storm: None, change: None }));
    rooms.note(&hall(), &(2..=20), None);
    assert_eq!(world.reported(), []);
    time::advance(Duration::from_secs(3)).await;
    rooms.note(&hall(), &(21..=31), None);
    assert_eq!(world.reported().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn threshold_of_0_counts_no_room() {
    let world = World::start(1);
    let rooms = rooms(&world, 0);
    rooms.note(&hall(), &(1..=10_000), None);
    assert_eq!((rooms.rule(), world.view(&hall()), world.reported()), (None, None, vec![]));
}
