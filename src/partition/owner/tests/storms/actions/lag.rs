//! Actions on storms while the archive lags.

use super::*;

#[tokio::test(start_paused = true)]
async fn restriction_waits_for_an_archive_that_lags_before_it_is_undone() {
    let mut stage = Box::pin(Stage::start(Some(StormAction::Admins), &[0, 1])).await;
    stage.send(101).await;
    stage.pass(100_000).await;
    assert_eq!(stage.settings().await, [set("admins"), set("@102")]);
    let [end, archive] = [Gate::new(), Gate::new()];
    // The check of the fence at the end of the storm, and the one of the position in the background.
    (0..2).for_each(|_| stage.plan.plan("load", Fault::Hold(end.clone())));
    stage.pass(30_000).await;
    assert_eq!((reported(&stage.cluster), end.reached()), (vec![started_id(), over_id()], 2));
    // A person decides, which is not archived yet.
    stage.plan.plan("archive", Fault::Hold(archive.clone()));
    stage.append(vec![decision("all")]).await;
    stage.pass(1_000).await;
    end.open();
    stage.pass(10_000).await;
    assert_eq!(stage.settings().await, [set("admins"), set("@102")], "it can't be known what was decided");
    archive.open();
    stage.pass(70_000).await;
    assert_eq!(stage.settings().await, [set("all"), None], "the decision is not overwritten");
}

#[tokio::test(start_paused = true)]
async fn entry_is_renewed_while_a_change_by_an_operator_waits_for_the_archive() {
    let mut stage = Box::pin(Stage::start(Some(StormAction::Admins), &[0, 1])).await;
    stage.send(101).await;
    stage.pass(3_000).await;
    assert_eq!(stage.settings().await, [set("admins"), set("@102")]);
    let archive = Gate::new();
    stage.plan.plan("archive", Fault::Hold(archive.clone()));
    stage.append(vec![decision("all")]).await;
    stage.pass(1_000).await;
    stage.set_actions(&["alert"]);
    stage.pass(2_000).await;
    let before = stage.entry().await.unwrap().version;
    stage.pass(35_000).await;
    assert!(stage.entry().await.unwrap().version > before, "each quarter of two windows");
    assert_eq!(stage.settings().await, [set("admins"), set("@102")], "the archive lags");
    archive.open();
    stage.pass(5_000).await;
    assert_eq!(stage.settings().await, [set("all"), None]);
}
