//! Rules of the requests of System V semaphores.

use super::*;
use signalbox_protocol::{LABEL_BYTES_MAX, SysvOpcode, SysvRequest};

/// The number of groups and the length of the label that a server reads from an OpenProcess with these.
fn open_process(groups: usize, label: usize) -> Result<(usize, usize), Status> {
    let mut frame = BytesMut::from(&[0x90, SysvOpcode::OpenProcess.code(), 0, 0][..]);
    frame.put_u32((16 + 2 + 4 * groups + 2 + label) as u32);
    frame.put_bytes(0, 4 + 16);
    frame.put_u16(groups as u16);
    frame.put_bytes(0, 4 * groups);
    frame.put_u16(label as u16);
    frame.put_bytes(b'x', label);
    let mut frames = RequestCodec::default().decode(&mut frame).unwrap().unwrap();
    match frames.next().unwrap().parse_sysv()? {
        SysvRequest::OpenProcess { groups, label, .. } => Ok((groups.len(), label.len())),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_process_has_at_most_1024_groups_and_a_label_of_the_length_of_others() {
    assert_eq!(open_process(0, 0), Ok((0, 0)));
    assert_eq!(open_process(1024, LABEL_BYTES_MAX), Ok((1024, LABEL_BYTES_MAX)));
    assert_eq!(open_process(1025, 0), Err(Status::InvalidArguments));
    assert_eq!(open_process(0, LABEL_BYTES_MAX + 1), Err(Status::InvalidArguments));
}
