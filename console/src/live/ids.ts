/** Whether a text may begin an id: of a user, a device, a group, a room or a message. */
export function isPrefix(text: string): boolean {
  return /^[A-Za-z0-9_.-]{0,64}$/.test(text);
}

/** Whether a text is such an id. */
export function isId(text: string): boolean {
  return text !== "" && isPrefix(text);
}
