import{H as i,K as a,M as o,O as t,P as n,b as e,ja as p,q as r}from"./chunk-KEAXMGAT.js";o();a();t();var d=document.getElementById("app");d&&e(n(p,{}),d);r().then(i);
