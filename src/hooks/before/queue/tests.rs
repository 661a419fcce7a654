//! Queue against a naive list: order, bounds, and no item that stays behind.

use proptest::prelude::*;

use super::*;

/// Bounds of the queue under test.
const SENDERS_MAX: usize = 2;
const WAITING_MAX: usize = 40;

#[derive(Clone, Debug)]
enum Step {
    /// A question of so many bytes.
    Push(usize),
    /// A task takes its next items.
    Take,
    /// The question of an item that waits is over.
    End(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1..60_000usize).prop_map(Step::Push),
        2 => Just(Step::Take),
        1 => any::<prop::sample::Index>().prop_map(Step::End),
    ];
    prop::collection::vec(step, 0..200)
}

/// Item of the model: number, bytes, and what waits for its answer.
struct Question {
    number: usize,
    bytes: usize,
    answer: Option<oneshot::Receiver<BeforeAnswer>>,
}

fn id(number: usize) -> MsgId {
    MsgId::new(&format!("m{number}")).unwrap()
}

/// Returns the numbers that a request takes from the model.
fn expected(model: &mut Vec<Question>) -> Vec<usize> {
    let (mut batch, mut bytes) = (Vec::new(), 0);
    while batch.len() < BATCH_MAX && !model.is_empty() {
        let next = &model[0];
        if next.answer.is_some() && !batch.is_empty() && bytes + next.bytes > BATCH_BYTES_MAX {
            break;
        }
        let Question { number, bytes: its, answer } = model.remove(0);
        if answer.is_some() {
            bytes += its;
            batch.push(number);
        }
    }
    batch
}

proptest! {
    #[test]
    fn requests_take_items_in_order_and_within_their_bounds(steps in steps()) {
        let queue = BatchQueue::new(SENDERS_MAX, WAITING_MAX);
        let (mut model, mut senders): (Vec<Question>, usize) = (Vec::new(), 0);
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Push(bytes) => {
                    let (item, answer) = Waiting::new(vec![b'x'; bytes], id(number), Instant::now());
                    match queue.push(item) {
                        Ok(starts) => {
                            prop_assert_eq!(starts, senders < SENDERS_MAX);
                            senders += usize::from(starts);
                            model.push(Question { number, bytes, answer: Some(answer) });
                        }
                        Err(failure) => {
                            prop_assert_eq!(failure, HookFailure::Full);
                            model.retain(|it| it.answer.is_some());
                            prop_assert!(model.len() >= WAITING_MAX);
                        }
                    }
                }
                Step::End(which) => {
                    if !model.is_empty() {
                        let at = which.index(model.len());
                        model[at].answer = None;
                    }
                }
                Step::Take if senders == 0 => {}
                Step::Take => {
                    let taken = queue.take().map(|it| it.into_iter().map(|it| it.msg_id).collect::<Vec<_>>());
                    let expected: Vec<_> = expected(&mut model).into_iter().map(id).collect();
                    if taken.is_none() {
                        senders -= 1;
                        prop_assert!(model.is_empty());
                    }
                    prop_assert_eq!(taken.unwrap_or_default(), expected);
                }
            }
            prop_assert!(senders > 0 || model.is_empty(), "a task is there while an item waits");
            prop_assert!(queue.state.lock().items.len() <= WAITING_MAX + 1);
            let bytes: usize = queue.state.lock().items.iter().map(|item| item.json.len()).sum();
            prop_assert_eq!(bytes, queue.state.lock().bytes);
        }
    }
}

#[test]
fn bytes_that_wait_are_bounded() {
    let queue = BatchQueue::new(1, 1_000);
    let mut answers = Vec::new();
    let push = |answers: &mut Vec<_>| {
        let (item, answer) = Waiting::new(vec![b'x'; 1024 * 1024], id(answers.len()), Instant::now());
        answers.push(answer);
        queue.push(item)
    };
    assert_eq!(push(&mut answers), Ok(true));
    for _ in 1..8 {
        assert_eq!(push(&mut answers), Ok(false));
    }
    assert_eq!(push(&mut answers), Err(HookFailure::Full));
    answers.clear();
    assert_eq!(push(&mut answers), Ok(false), "questions that are over take no place");
    assert_eq!(queue.take().map(|batch| batch.len()), Some(1));
}

#[test]
fn body_is_a_list_also_of_one_item() {
    let items = |texts: &[&str]| -> Vec<Waiting> {
        let item = |text: &&str| Waiting::new(text.as_bytes().to_vec(), id(0), Instant::now()).0;
        texts.iter().map(item).collect()
    };
    assert_eq!(body(&items(&["{}"])), br#"{"items":[{}]}"#);
    assert_eq!(body(&items(&["{\"a\":1}", "{}"])), br#"{"items":[{"a":1},{}]}"#);
}
