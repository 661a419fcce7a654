import type { WebSocketLike } from './types.js';

export interface Handlers {
  opened(): void;
  /** One frame, as JSON text. */
  text(text: string): void;
  /** The connection has ended, or could not be made; `cause` is what the platform says about that. */
  closed(cause?: string): void;
}

export interface Socket {
  send(text: string): void;
  close(): void;
}

/** Opens a connection of one transport. */
export type Dial = (address: string, handlers: Handlers) => Socket;

/** Opens a WebSocket with JSON frames, one per text message. */
export function dialWebSocket(make?: (url: string, protocols: string[]) => WebSocketLike): Dial {
  return (address, handlers) => {
    const protocols = ['tidegate.v1.json'];
    const socket: WebSocketLike = make ? make(address, protocols) : new WebSocket(address, protocols);
    socket.onopen = handlers.opened;
    socket.onmessage = ({ data }: { data: string }) => handlers.text(data);
    const detach = () => {
      socket.onopen = socket.onmessage = socket.onclose = socket.onerror = null;
    };
    socket.onclose = () => handlers.closed();
    // Browsers report the end after an error, but not every platform does so for a connection that was never open.
    socket.onerror = ({ message }: { message?: string }) => {
      detach();
      socket.close();
      // A browser logs the cause and gives it to no page; other platforms have no `onLine`.
      const isOnline = globalThis.navigator?.onLine;
      handlers.closed(message || (isOnline ? 'see the console of the browser' : isOnline === false ? 'the browser is offline' : ''));
    };
    return {
      send: (text) => socket.send(text),
      close: () => {
        detach();
        socket.close();
      },
    };
  };
}
