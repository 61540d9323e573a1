//! The calls of etcd that signalbox makes, with the fields that it uses. Names, numbers and types of fields are those of
//! etcd's `rpc.proto` and `kv.proto`, so that the bytes are the same; etcd ignores fields that are not set, and signalbox
//! ignores fields that are not listed.

use prost::{Message, Oneof};

pub(super) const KV_RANGE: &str = "/etcdserverpb.KV/Range";
pub(super) const KV_TXN: &str = "/etcdserverpb.KV/Txn";
pub(super) const AUTH_AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";
/// Its request has no fields.
pub(super) const MAINTENANCE_STATUS: &str = "/etcdserverpb.Maintenance/Status";

#[derive(Clone, Message)]
pub(super) struct ResponseHeader {
    #[prost(uint64, tag = "2")]
    pub member_id: u64,
    /// The revision of the store when the call was performed.
    #[prost(int64, tag = "3")]
    pub revision: i64,
}

#[derive(Clone, Message)]
pub(super) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// The revision at which the key was written last.
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub value: Vec<u8>,
}

#[derive(Clone, Message)]
pub(super) struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// The first key after the range; empty: `key` is the only one.
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    /// 0: the latest.
    #[prost(int64, tag = "4")]
    pub revision: i64,
    #[prost(bool, tag = "9")]
    pub count_only: bool,
}

#[derive(Clone, Message)]
pub(super) struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<KeyValue>,
    #[prost(int64, tag = "4")]
    pub count: i64,
}

#[derive(Clone, Message)]
pub(super) struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

#[derive(Clone, Message)]
pub(super) struct DeleteRangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
}

#[derive(Clone, Message)]
pub(super) struct RequestOp {
    #[prost(oneof = "Request", tags = "1, 2, 3, 4")]
    pub request: Option<Request>,
}

#[derive(Clone, Oneof)]
pub(super) enum Request {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    DeleteRange(DeleteRangeRequest),
    #[prost(message, tag = "4")]
    Txn(TxnRequest),
}

#[derive(Clone, Message)]
pub(super) struct ResponseOp {
    #[prost(oneof = "Response", tags = "1, 2, 3, 4")]
    pub response: Option<Response>,
}

#[derive(Clone, Oneof)]
pub(super) enum Response {
    #[prost(message, tag = "1")]
    Range(RangeResponse),
    #[prost(message, tag = "2")]
    Put(()),
    #[prost(message, tag = "3")]
    DeleteRange(()),
    #[prost(message, tag = "4")]
    Txn(TxnResponse),
}

#[derive(Clone, Message)]
pub(super) struct Compare {
    /// [`EQUAL`] or [`LESS`].
    #[prost(int32, tag = "1")]
    pub result: i32,
    /// [`MOD`] or [`VALUE`].
    #[prost(int32, tag = "2")]
    pub target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub key: Vec<u8>,
    /// The first key after the range, all keys of which are compared; empty: `key` is the only one.
    #[prost(bytes = "vec", tag = "64")]
    pub range_end: Vec<u8>,
    #[prost(oneof = "Compared", tags = "6, 7")]
    pub target_union: Option<Compared>,
}

pub(super) const EQUAL: i32 = 0;
pub(super) const LESS: i32 = 2;
pub(super) const MOD: i32 = 2;
pub(super) const VALUE: i32 = 3;

#[derive(Clone, Oneof)]
pub(super) enum Compared {
    #[prost(int64, tag = "6")]
    ModRevision(i64),
    #[prost(bytes, tag = "7")]
    Value(Vec<u8>),
}

#[derive(Clone, Message)]
pub(super) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub failure: Vec<RequestOp>,
}

#[derive(Clone, Message)]
pub(super) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub responses: Vec<ResponseOp>,
}

#[derive(Clone, Message)]
pub(super) struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub password: String,
}

#[derive(Clone, Message)]
pub(super) struct AuthenticateResponse {
    #[prost(string, tag = "2")]
    pub token: String,
}

#[derive(Clone, Message)]
pub(super) struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(string, tag = "2")]
    pub version: String,
    #[prost(int64, tag = "3")]
    pub db_size: i64,
    /// The id of the member that leads etcd; 0: no member does.
    #[prost(uint64, tag = "4")]
    pub leader: u64,
    /// Alarms, and whether there is no leader.
    #[prost(string, repeated, tag = "8")]
    pub errors: Vec<String>,
    #[prost(int64, tag = "9")]
    pub db_size_in_use: i64,
    #[prost(bool, tag = "10")]
    pub is_learner: bool,
    /// Since etcd 3.6.
    #[prost(int64, tag = "12")]
    pub db_size_quota: i64,
}
