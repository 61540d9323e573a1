//! Converts reads and transactions to messages of etcd, and its answers back.

use std::collections::HashSet;

use super::messages::{
    self, Compared, DeleteRangeRequest, EQUAL, KeyValue, LESS, MOD, PutRequest, RangeRequest, RangeResponse,
    Request, RequestOp, Response, ResponseHeader, ResponseOp, TxnRequest, TxnResponse, VALUE,
};
use crate::coordinator::{
    Compare, Entry, Operation, Range, RangeAnswer, Revision, Transaction, TransactionAnswer,
};

/// The largest number of operations that a branch contains itself. A branch with more operations is sent as inner
/// transactions. etcd accepts 128 operations in the outer transaction and one inner transaction together
/// (`--max-txn-ops`).
const FLAT_MAX: usize = 100;
/// The number of operations in each inner transaction: a branch of 64 inner transactions has up to 4,096 operations.
const INNER: usize = 64;

/// Converts a read to a request.
pub(super) fn range_request(range: &Range) -> RangeRequest {
    let (key, range_end) = match &range.to {
        None => (range.from.clone(), Vec::new()),
        // These ranges are empty, but etcd takes an empty end for a single key, and the end 0 for all later keys. The
        // range from a key to itself is empty for etcd too.
        Some(to) if to.is_empty() || to == &[0] => {
            let from = if range.from.is_empty() { vec![1] } else { range.from.clone() };
            (from.clone(), from)
        }
        // No key is empty, so the byte 0 is the first possible key.
        Some(to) if range.from.is_empty() => (vec![0], to.clone()),
        Some(to) => (range.from.clone(), to.clone()),
    };
    // For etcd, 0 means the latest revision. The first revision is 1.
    let revision = range.at.map_or(0, |at| i64::try_from(at).unwrap_or(i64::MAX).max(1));
    RangeRequest { key, range_end, revision, count_only: range.count_only }
}

/// Converts the answer to a read. The error says why it is malformed.
pub(super) fn range_answer(answer: RangeResponse) -> Result<RangeAnswer, &'static str> {
    let entries = answer.kvs.into_iter().map(entry).collect::<Result<_, _>>()?;
    let count = u64::try_from(answer.count).map_err(|_| "a negative number of keys")?;
    Ok(RangeAnswer { revision: revision(answer.header)?, count, entries })
}

/// Returns whether a branch writes a key twice. etcd refuses most such transactions, but not all of those with inner
/// transactions.
pub(super) fn writes_a_key_twice(transaction: &Transaction) -> bool {
    [&transaction.then, &transaction.otherwise].into_iter().any(|branch| {
        let mut keys = HashSet::with_capacity(branch.len());
        let mut written = branch.iter().filter_map(|operation| match operation {
            Operation::Put { key, .. } | Operation::Delete { key } => Some(key),
            Operation::Read { .. } => None,
        });
        written.any(|key| !keys.insert(key))
    })
}

/// Converts a transaction to a request.
pub(super) fn transaction_request(transaction: &Transaction) -> TxnRequest {
    TxnRequest {
        compare: transaction.compare.iter().map(compare).collect(),
        success: branch(&transaction.then),
        failure: branch(&transaction.otherwise),
    }
}

fn branch(operations: &[Operation]) -> Vec<RequestOp> {
    if operations.len() <= FLAT_MAX {
        return operations.iter().map(operation).collect();
    }
    let inner = operations.chunks(INNER).map(|part| {
        let success = part.iter().map(operation).collect();
        // Without comparisons, an inner transaction always succeeds.
        Request::Txn(TxnRequest { compare: Vec::new(), success, failure: Vec::new() })
    });
    inner.map(|inner| RequestOp { request: Some(inner) }).collect()
}

fn operation(operation: &Operation) -> RequestOp {
    let request = match operation {
        Operation::Put { key, value } => Request::Put(PutRequest { key: key.clone(), value: value.clone() }),
        Operation::Delete { key } => Request::DeleteRange(DeleteRangeRequest { key: key.clone() }),
        Operation::Read { key } => {
            Request::Range(RangeRequest { key: key.clone(), ..RangeRequest::default() })
        }
    };
    RequestOp { request: Some(request) }
}

fn compare(compare: &Compare) -> messages::Compare {
    let revision = |at: Revision| Compared::ModRevision(i64::try_from(at).unwrap_or(i64::MAX));
    let (key, range_end, result, target, value) = match compare {
        Compare::Modified { key, at } => (key, &[][..], EQUAL, MOD, revision(*at)),
        Compare::Value { key, is } => (key, &[][..], EQUAL, VALUE, Compared::Value(is.clone())),
        Compare::NotAfter { from, to, at } => (from, &to[..], LESS, MOD, revision(at.saturating_add(1))),
    };
    messages::Compare {
        result,
        target,
        key: key.clone(),
        target_union: Some(value),
        range_end: range_end.to_vec(),
    }
}

/// Converts the answer to a transaction. The error says why it is malformed.
pub(super) fn transaction_answer(
    transaction: &Transaction,
    answer: TxnResponse,
) -> Result<TransactionAnswer, &'static str> {
    let held = answer.succeeded;
    let performed = if held { &transaction.then } else { &transaction.otherwise };
    let mut read = Vec::new();
    collect(answer.responses, &mut read)?;
    let expected = performed.iter().filter(|operation| matches!(operation, Operation::Read { .. })).count();
    if read.len() != expected {
        return Err("a number of reads that differs from the request");
    }
    Ok(TransactionAnswer { revision: revision(answer.header)?, held, read })
}

fn collect(responses: Vec<ResponseOp>, read: &mut Vec<Option<Entry>>) -> Result<(), &'static str> {
    for response in responses {
        match response.response {
            Some(Response::Range(range)) => {
                read.push(range.kvs.into_iter().next().map(entry).transpose()?);
            }
            Some(Response::Txn(inner)) => collect(inner.responses, read)?,
            Some(Response::Put(()) | Response::DeleteRange(())) => {}
            None => return Err("an operation without an answer"),
        }
    }
    Ok(())
}

fn entry(found: KeyValue) -> Result<Entry, &'static str> {
    let modified = u64::try_from(found.mod_revision).map_err(|_| "a negative revision")?;
    Ok(Entry { key: found.key, value: found.value, modified })
}

fn revision(header: Option<ResponseHeader>) -> Result<Revision, &'static str> {
    let header = header.ok_or("no header")?;
    u64::try_from(header.revision).map_err(|_| "a negative revision")
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    fn puts(count: usize) -> Transaction {
        let then = (0..count).map(|n| Operation::Put { key: n.to_be_bytes().into(), value: Vec::new() });
        Transaction { then: then.collect(), ..Transaction::default() }
    }

    #[test]
    fn a_long_branch_is_sent_in_parts_that_etcd_accepts() {
        assert_eq!(transaction_request(&puts(100)).success.len(), 100);
        for (count, outer, last) in [(101, 2, 37), (4_000, 63, 32), (4_096, 64, 64)] {
            let request = transaction_request(&puts(count));
            assert_eq!(request.success.len(), outer);
            let Some(Request::Txn(inner)) = &request.success[outer - 1].request else { panic!("{count}") };
            assert_eq!(inner.success.len(), last);
        }
    }

    #[test]
    fn etcd_is_asked_for_what_a_transaction_says() {
        let key = || b"k".to_vec();
        let read = Operation::Read { key: key() };
        let transaction = Transaction {
            compare: vec![
                Compare::Modified { key: key(), at: 7 },
                Compare::Value { key: key(), is: b"v".to_vec() },
                Compare::NotAfter { from: key(), to: b"l".to_vec(), at: 7 },
            ],
            then: vec![
                Operation::Put { key: key(), value: b"v".to_vec() },
                Operation::Delete { key: key() },
                read.clone(),
            ],
            otherwise: vec![read],
        };
        let compare = |result, target, range_end: &[u8], value| messages::Compare {
            result,
            target,
            key: key(),
            range_end: range_end.to_vec(),
            target_union: Some(value),
        };
        let request = |request| RequestOp { request: Some(request) };
        let read = || request(Request::Range(RangeRequest { key: key(), ..RangeRequest::default() }));
        let expected = TxnRequest {
            compare: vec![
                compare(EQUAL, MOD, b"", Compared::ModRevision(7)),
                compare(EQUAL, VALUE, b"", Compared::Value(b"v".to_vec())),
                compare(LESS, MOD, b"l", Compared::ModRevision(8)),
            ],
            success: vec![
                request(Request::Put(PutRequest { key: key(), value: b"v".to_vec() })),
                request(Request::DeleteRange(DeleteRangeRequest { key: key() })),
                read(),
            ],
            failure: vec![read()],
        };
        assert_eq!(transaction_request(&transaction).encode_to_vec(), expected.encode_to_vec());
    }

    #[test]
    fn an_answer_without_all_reads_is_malformed() {
        let read = Operation::Read { key: b"k".into() };
        let transaction = Transaction { then: vec![read], ..Transaction::default() };
        let header = Some(ResponseHeader { member_id: 1, revision: 1 });
        let answer = TxnResponse { header, succeeded: true, responses: Vec::new() };
        transaction_answer(&transaction, answer.clone()).unwrap_err();
        assert!(!transaction_answer(&transaction, TxnResponse { succeeded: false, ..answer }).unwrap().held);
    }
}
