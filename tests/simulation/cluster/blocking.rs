//! Code of the product that blocks, in simulated time. It runs in a thread of its own, and the thread and the simulation take
//! turns: the simulation waits until the thread calls or ends, and the thread waits until its call is answered. So the trace
//! follows from the seed.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{panic, thread};

use signalbox_cluster::coordinator::{
    CallError, Coordinator, Range, RangeAnswer, Transaction, TransactionAnswer,
};
use signalbox_cluster::timing::BootTime;

use super::clock::NodeClock;
use super::process::Process;

enum Call {
    Range(Range),
    Transact(Transaction),
    Pause(Duration),
    /// The thread makes no more calls.
    End,
}

enum Answer {
    Range(Result<RangeAnswer, CallError>),
    Transaction(Result<TransactionAnswer, CallError>),
    Paused,
}

/// A thread's connection to etcd, and its time. When its process has ended, nothing is answered, and the thread ends with its
/// next pause.
pub struct Remote {
    clock: NodeClock,
    calls: Sender<Call>,
    answers: Arc<Mutex<Receiver<Answer>>>,
}

impl Remote {
    fn call(&self, call: Call) -> Option<Answer> {
        self.calls.send(call).ok()?;
        self.answers.lock().expect("nothing panics while it waits").recv().ok()
    }
}

impl Coordinator for Remote {
    fn range(&mut self, range: &Range) -> Result<RangeAnswer, CallError> {
        match self.call(Call::Range(range.clone())) {
            Some(Answer::Range(answer)) => answer,
            Some(Answer::Transaction(_) | Answer::Paused) => unreachable!("the answer fits the call"),
            None => Err(ended()),
        }
    }

    fn transact(&mut self, transaction: &Transaction) -> Result<TransactionAnswer, CallError> {
        match self.call(Call::Transact(transaction.clone())) {
            Some(Answer::Transaction(answer)) => answer,
            Some(Answer::Range(_) | Answer::Paused) => unreachable!("the answer fits the call"),
            None => Err(ended()),
        }
    }

    fn pause(&mut self, span: Duration) {
        if self.call(Call::Pause(span)).is_none() {
            panic::resume_unwind(Box::new("the process has ended"));
        }
    }

    fn now(&self) -> BootTime {
        self.clock.now()
    }
}

fn ended() -> CallError {
    CallError::Unanswered("the process has ended".to_owned())
}

/// Tells the simulation that the thread ends, even if it panics.
struct End(Sender<Call>);

impl Drop for End {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.0.send(Call::End);
    }
}

/// Runs blocking work as a thread of a process. Its calls to etcd wait for an answer for at most `limit`.
pub async fn run<T: Send + 'static>(
    process: &Process,
    limit: Duration,
    work: impl FnOnce(Remote) -> T + Send + 'static,
) -> T {
    let (calls, called) = mpsc::channel();
    let (answer, answers) = mpsc::channel();
    let end = End(calls.clone());
    let answers = Arc::new(Mutex::new(answers));
    let remote = Remote { clock: process.clock.clone(), calls, answers };
    let thread = thread::spawn(move || {
        let _end = end;
        work(remote)
    });
    loop {
        let answered = match called.recv().expect("a thread reports its end") {
            Call::Range(range) => {
                let read = process.read(limit, |etcd| etcd.range(&range)).await;
                Answer::Range(read.and_then(|answer| answer))
            }
            Call::Transact(transaction) => {
                Answer::Transaction(process.transact_within(limit, &transaction).await)
            }
            Call::Pause(span) => {
                process.clock.sleep(span).await;
                process.awake().await;
                Answer::Paused
            }
            Call::End => break,
        };
        answer.send(answered).expect("the thread waits for the answer");
    }
    thread.join().expect("the thread does not panic")
}
